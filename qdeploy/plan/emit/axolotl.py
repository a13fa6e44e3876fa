"""Axolotl: `axolotl.yaml` for `axolotl train`, and DeepSpeed's JSON.

Keys are those of its schema (axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas: config, model,
training, peft, fsdp). It loads the weights in the compute type (utils/config, torch_dtype).
"""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.plan.emit import DS_FILE, Choice, choice_of, mapping_text, refuse
from qdeploy.plan.emit._trainer import (
    LORA_ALPHA_FACTOR,
    LORA_DROPOUT,
    check_peft,
    lora_targets,
    optimizer_settings,
    trained_embeddings,
)
from qdeploy.plan.hf_names import attention_name
from qdeploy.plan.schema import Plan

_NAME = "Axolotl"
_FILE = "axolotl.yaml"
_LIGER = "axolotl.integrations.liger.LigerPlugin"
_CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def emit(plan: Plan) -> dict[str, str]:
    """The training file. Raises InputError for what Axolotl cannot express."""
    choice = choice_of(plan)
    _check_weights(choice)
    text = mapping_text(_config(choice), *_comments(choice))
    return {_FILE: text, **({DS_FILE: choice.ds_json()} if choice.deepspeed else {})}


def _config(choice: Choice) -> dict[str, Any]:
    request, job = choice.request, choice.job
    optimizer = optimizer_settings(choice)
    config: dict[str, Any] = {
        "base_model": choice.model,
        **_method(choice),
        "sequence_len": request.seq_len,
        "sample_packing": request.packing,
        "micro_batch_size": job.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "optimizer": optimizer.pop("optim"),
        **optimizer,
        **_precision(choice),
        "attn_implementation": attention_name(request.attention),
        **_loss(choice),
        "torch_compile": request.compile,
        "output_dir": "./outputs/qdeploy",
    }
    if request.activation_offload:
        config["activation_offloading"] = True
    if choice.fsdp:
        return {**config, **_fsdp(choice)}
    config["gradient_checkpointing"] = choice.layout.checkpointing
    if choice.deepspeed:
        config["deepspeed"] = DS_FILE
    return config


def _fsdp(choice: Choice) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": choice.layout.shards_weights,
            "offload_params": choice.layout.offload != "none",
            "activation_checkpointing": choice.layout.checkpointing,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "FULL_STATE_DICT",
        },
    }


def _precision(choice: Choice) -> dict[str, bool]:
    dtype = choice.job.precision.dtype
    if choice.job.pure:
        return {"bfloat16": True, "bf16": False, "fp16": False}
    return {"bf16": dtype == "bf16", "fp16": dtype == "fp16"}


def _loss(choice: Choice) -> dict[str, Any]:
    name = choice.request.loss or choice.job.traits.loss
    if name == "liger":
        return {"plugins": [_LIGER], "liger_fused_linear_cross_entropy": True}
    if name == "cut":
        return {"plugins": [_CUT], "cut_cross_entropy": True}
    if name == "chunked":
        return {"chunked_cross_entropy": True}
    if name != "hf":
        raise refuse(_NAME, f"the loss {name}", "plan with --loss hf, chunked, cut or liger")
    return {}


def _method(choice: Choice) -> dict[str, Any]:
    peft = check_peft(choice, _NAME)
    if peft is None:
        return {}
    base, targets = choice.job.base, lora_targets(choice)
    quantized = base.startswith("nf4")
    method: dict[str, Any] = {
        "adapter": "qlora" if quantized else "lora",
        "load_in_4bit": quantized,
        "load_in_8bit": base == "int8",
        "lora_r": choice.request.lora_rank,
        "lora_alpha": LORA_ALPHA_FACTOR * choice.request.lora_rank,
        "lora_dropout": LORA_DROPOUT if choice.request.lora_dropout else 0.0,
        **({"lora_target_modules": targets} if targets else {"lora_target_linear": True}),
    }
    if base == "nf4":
        method["bnb_config_kwargs"] = {"bnb_4bit_use_double_quant": False}
    if embeddings := trained_embeddings(choice, _NAME):
        method["lora_modules_to_save"] = embeddings
    return method


def _check_weights(choice: Choice) -> None:
    unsharded = not choice.deepspeed and not choice.fsdp
    mixed = choice.job.precision.dtype != "fp32" and not choice.job.pure
    if unsharded and mixed and choice.request.peft is None:
        raise InputError(
            f"{_NAME} loads the weights in {choice.job.precision.dtype.upper()}, the plan keeps "
            "them in FP32 under autocast",
            hint="plan with --precision bf16-pure, or with zero1, zero2, zero3 or fsdp",
        )


def _comments(choice: Choice) -> list[str]:
    world = f"{choice.request.gpus} GPUs" + (
        f" on each of {choice.request.nodes} nodes" if choice.request.nodes > 1 else ""
    )
    return [f"Add datasets, then: axolotl train {_FILE} (planned for {world})"]
