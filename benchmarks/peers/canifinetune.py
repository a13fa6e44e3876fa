"""`canifinetune estimate` (DaoyuanLi2816/can-i-finetune-this): LoRA, QLoRA or full on one GPU.

It says what it aims at: the process's peak of reserved memory; a margin of 5 % of the card is
named apart from it, so the margin is left out here. 8 % of the card stand for CUDA context,
fragmentation and workspaces; they are left out where a row measured allocated memory. Its fields
`*_gb` are GiB, rounded to four places.
"""

from __future__ import annotations

from typing import Any

NAME = "canifinetune"
REQUIREMENTS = ("canifinetune==0.4.1",)
ESTIMATES = (
    "reserved peak of one process with transformers and PEFT, 8 % of the card for CUDA and "
    "fragmentation; 5 % of safety on top, left out here; its coefficients were developed on runs "
    "of an RTX 4080 that are among the peaks"
)
UNITS = "fields called `_gb`, in GiB"

_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw8bit": "adamw_8bit",
    "paged_adamw8bit": "paged_adamw_8bit",
    "sgd": "sgd",
}
_ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
_BASES = {"nf4": "nf4", "nf4-dq": "nf4_double_quant", "int8": "int8"}
_SCOPES = {
    "conservative": {"q_proj", "v_proj"},
    "attention": {"q_proj", "k_proj", "v_proj", "o_proj"},
}


def estimate(question: dict[str, Any]) -> int:
    """Bytes on the row's basis; ValueError for what the command has no input for."""
    request = question["request"]
    if question["world"] > 1:
        raise ValueError("one GPU only")
    if request["strategy"] != "none" or request["offload"] != "none":
        raise ValueError("ZeRO, FSDP and offload are no inputs")
    if request["trainer"] != "hf":
        raise ValueError("transformers only")
    if request["optimizer"] not in _OPTIMIZERS:
        raise ValueError(f"optimizer {request['optimizer']} is unknown to it")
    if request["loss"] not in (None, "hf", "liger"):
        raise ValueError(f"loss {request['loss']} is unknown to it")
    if question["shape"]["task"] != "causal_lm":
        raise ValueError("language models only")
    method = _method(request)
    return _command(question, method)


def _method(request: dict[str, Any]) -> dict[str, Any]:
    precision = "bf16" if request["precision"] == "bf16-pure" else request["precision"]
    if request["peft"] is None:
        if request["precision"] in ("bf16", "fp16"):
            raise ValueError("full training with FP32 masters is unknown to it")
        return {"method": "full", "base_dtype": precision}
    if request["peft"] not in ("lora", "qlora") or request["train_embeddings"]:
        raise ValueError("adapters other than LoRA and QLoRA are unknown to it")
    method: dict[str, Any] = {"base_dtype": precision, "lora_rank": request["lora_rank"]}
    if request["base"] == "16bit":
        return {**method, "method": "lora"}
    if request["base"] not in _BASES:
        raise ValueError(f"a base in {request['base']} is refused by it")
    return {**method, "method": "qlora", "quantization": _BASES[request["base"]]}


def _command(question: dict[str, Any], method: dict[str, Any]) -> int:
    from canifinetune.estimator.memory import EstimateRequest, estimate
    from canifinetune.utils.units import gb_to_bytes

    request, targets = question["request"], set(question["lora_targets"])
    memory = estimate(
        EstimateRequest(
            model_id=question["shape"]["name"],
            override=_sizes(question["shape"]),
            use_network=False,
            gpu_vram_gb=question["gpu_memory_mib"] / 1024,
            seq_len=request["seq_len"],
            micro_batch_size=request["micro_batch"],
            optimizer=_OPTIMIZERS[request["optimizer"]],
            gradient_checkpointing=request["checkpointing"],
            attention_implementation=_ATTENTION[request["attention"]],
            loss_backend="liger" if request["loss"] == "liger" else "stock",
            lora_target_scope=next(
                (scope for scope, names in _SCOPES.items() if targets <= names), "all_linear"
            ),
            **method,
        )
    ).memory
    total = memory.total_estimated_gb - memory.safety_margin_gb
    if request["basis"] == "allocated":
        total -= memory.cuda_overhead_gb
    return int(gb_to_bytes(total))


def _sizes(shape: dict[str, Any]) -> dict[str, Any]:
    return {
        "family": shape["family"],
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "intermediate_size": shape["expert_intermediate_size"] or shape["intermediate_size"],
        "vocab_size": shape["vocab_size"],
        "tie_word_embeddings": shape["tied_embeddings"],
        "num_local_experts": max(1, shape["experts"]),
        "num_experts_per_tok": max(1, shape["experts_per_token"]),
        "total_params": shape["parameters"],
    }
