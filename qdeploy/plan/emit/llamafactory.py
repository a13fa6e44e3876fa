"""LLaMA-Factory: `train.yaml` for `llamafactory-cli train`, with DeepSpeed's or accelerate's file.

Keys are those of its argument classes (hiyouga/LLaMA-Factory, src/llamafactory/hparams:
model_args, data_args, finetuning_args) and of transformers' TrainingArguments.
"""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.plan.emit import DS_FILE, Choice, choice_of, mapping_text
from qdeploy.plan.emit import accelerate as accelerate_file
from qdeploy.plan.emit._trainer import (
    LORA_ALPHA_FACTOR,
    LORA_DROPOUT,
    batch_arguments,
    check_peft,
    liger,
    lora_targets,
    mixed_precision,
    no_activation_offload,
    optimizer_settings,
    trained_embeddings,
)
from qdeploy.plan.schema import Plan

_NAME = "LLaMA-Factory"
_FILE = "train.yaml"
_ATTENTION = {"flash": "fa2", "sdpa": "sdpa", "eager": "disabled"}


def emit(plan: Plan) -> dict[str, str]:
    """The training file. Raises InputError for what LLaMA-Factory cannot express."""
    choice = choice_of(plan)
    no_activation_offload(choice, _NAME)
    files = {_FILE: mapping_text(_config(choice), *_comments(choice))}
    if choice.deepspeed:
        files[DS_FILE] = choice.ds_json()
    if choice.fsdp:
        files |= accelerate_file.emit(plan)
    return files


def _config(choice: Choice) -> dict[str, Any]:
    request, job = choice.request, choice.job
    config: dict[str, Any] = {
        "model_name_or_path": choice.model,
        "stage": "sft",
        "do_train": True,
        **_method(choice),
        "flash_attn": _ATTENTION[request.attention],
        "enable_liger_kernel": liger(choice, _NAME),
        "disable_gradient_checkpointing": not choice.layout.checkpointing,
        "cutoff_len": request.seq_len,
        "packing": request.packing,
        "neat_packing": request.packing,
        "output_dir": "saves/qdeploy",
        **batch_arguments(choice),
        **optimizer_settings(choice),
        **mixed_precision(choice),
        "torch_compile": request.compile,
    }
    if job.pure:
        config["pure_bf16"] = True
    if choice.deepspeed:
        config["deepspeed"] = DS_FILE
    return config


def _method(choice: Choice) -> dict[str, Any]:
    peft = check_peft(choice, _NAME)
    if peft is None:
        return {"finetuning_type": "full"}
    method: dict[str, Any] = {
        "finetuning_type": "lora",
        "lora_rank": choice.request.lora_rank,
        "lora_alpha": LORA_ALPHA_FACTOR * choice.request.lora_rank,
        "lora_dropout": LORA_DROPOUT if choice.request.lora_dropout else 0.0,
        "lora_target": ",".join(lora_targets(choice)) or "all",
    }
    if embeddings := trained_embeddings(choice, _NAME):
        method["additional_target"] = ",".join(embeddings)
    base = choice.job.base
    if base != "16bit":
        method |= {"quantization_method": "bnb", "quantization_bit": 8 if base == "int8" else 4}
    if base.startswith("nf4"):
        method |= {"quantization_type": "nf4", "double_quantization": base == "nf4-dq"}
    if base != "16bit" and choice.layout.shards_weights:
        raise InputError(
            f"{_NAME} does not shard a quantized base with {choice.layout.strategy.name}",
            hint="plan with zero2 or ddp, or with --peft lora",
        )
    return method


def _comments(choice: Choice) -> list[str]:
    launch = "llamafactory-cli train train.yaml"
    if choice.fsdp:
        launch = f"accelerate launch --config_file {accelerate_file.FILE} src/train.py train.yaml"
    elif choice.job.world > 1:
        launch = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={choice.request.gpus} {launch}"
        if choice.request.nodes > 1:
            launch = f"NNODES={choice.request.nodes} NODE_RANK=N MASTER_ADDR=HOST {launch}"
    return [f"Add dataset and template, then: {launch}"]
