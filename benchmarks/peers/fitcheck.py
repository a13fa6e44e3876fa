"""`fitcheck MODEL` (PyPI fitcheck-llm): LoRA, QLoRA or full on one GPU.

Its total is weights, LoRA, optimizer, gradients, activations and an overhead: a CUDA context and a
share for fragmentation. The context is left out where a row measured reserved memory, the whole
overhead where it measured allocated memory. All of it is in MiB. The command reads config.json and
the parameter count from the hub; here both come from the row's model, in LLaMA's keys, and its own
check of one against the other refuses what is not shaped like LLaMA.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

NAME = "fitcheck-llm"
REQUIREMENTS = ("fitcheck-llm==0.3.1",)
ESTIMATES = (
    "peak of one GPU with a CUDA context of 500 MiB and 5 % for fragmentation; on a T4, on which "
    "its constants were measured, other values"
)
UNITS = "MiB"

_OPTIMIZERS = {
    "adamw": "adamw",
    "paged_adamw": "adamw",
    "adamw8bit": "adam8bit",
    "paged_adamw8bit": "adam8bit",
    "sgd": "sgd",
    "sgd_momentum": "sgd-momentum",
}
_BASES: dict[str, dict[str, Any]] = {
    "16bit": {"quantization": "none"},
    "nf4": {"quantization": "nf4"},
    "nf4-dq": {"quantization": "nf4", "double_quant": True},
    "int8": {"quantization": "int8"},
}
_EXPERTS = {"num_local_experts": "experts", "num_experts_per_tok": "experts_per_token"}


def estimate(question: dict[str, Any]) -> int:
    """Bytes on the row's basis; ValueError for what the command has no input for."""
    request = question["request"]
    if question["world"] > 1:
        raise ValueError("one GPU only")
    if request["strategy"] != "none" or request["offload"] != "none":
        raise ValueError("ZeRO, FSDP and offload are no inputs")
    if request["optimizer"] not in _OPTIMIZERS:
        raise ValueError(f"optimizer {request['optimizer']} is unknown to it")
    if request["loss"] not in (None, "hf"):
        raise ValueError("the loss is no input: logits of all tokens")
    if question["shape"]["task"] != "causal_lm":
        raise ValueError("language models only")
    return _command(question, _method(request, question["lora_targets"]))


def _method(request: dict[str, Any], targets: list[str]) -> dict[str, Any]:
    precision = "bf16" if request["precision"] == "bf16-pure" else request["precision"]
    if request["peft"] is None:
        if request["precision"] == "bf16-pure":
            raise ValueError("full training without FP32 masters is unknown to it")
        return {"precision": precision, "lora_rank": None}
    if request["peft"] not in ("lora", "qlora") or request["train_embeddings"]:
        raise ValueError("adapters other than LoRA and QLoRA are unknown to it")
    if request["base"] not in _BASES:
        raise ValueError(f"a base in {request['base']} is unknown to it")
    return {
        "precision": precision,
        "lora_rank": request["lora_rank"],
        "lora_targets": targets,
        **_BASES[request["base"]],
    }


def _command(question: dict[str, Any], method: dict[str, Any]) -> int:
    from fitcheck.estimator import TrainingConfig, estimate
    from fitcheck.gpu_db import get_gpu, gpu_key_for
    from fitcheck.overhead_db import get_overhead_profile

    request = question["request"]
    training = TrainingConfig(
        optimizer=_OPTIMIZERS[request["optimizer"]],
        batch_size=request["micro_batch"],
        seq_len=request["seq_len"],
        grad_checkpoint=request["checkpointing"],
        flash_attn=request["attention"] != "eager",
        **method,
    )
    # Of its GPUs only the T4 has an overhead of its own; of others the total needs nothing.
    gpu = get_gpu("t4") if question["gpu"] == "T4" else get_gpu(vram_mib=question["gpu_memory_mib"])
    report = estimate(_model(question["shape"]), training, gpu)
    total_mib = report.total_mib
    if request["basis"] == "allocated":
        total_mib -= report.overhead_mib
    elif request["basis"] == "reserved":
        profile = get_overhead_profile(gpu_key_for(gpu), training.flash_attn, training.quantization)
        total_mib -= profile.base_context_mib
    return int(total_mib * 2**20)


def _model(shape: dict[str, Any]) -> Any:
    from fitcheck import config_parser

    config = {
        "model_type": shape["family"],
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "intermediate_size": shape["intermediate_size"],
        "vocab_size": shape["vocab_size"],
        "tie_word_embeddings": shape["tied_embeddings"],
        **{key: shape[ours] for key, ours in _EXPERTS.items() if shape["experts"]},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        config_parser.hf_hub_download = lambda **_: str(path)
        config_parser._reported_param_count = lambda *_: shape["parameters"]
        return config_parser.fetch_model_config(shape["name"])
