"""ms-swift: `train.sh` with one `swift sft` command, and DeepSpeed's JSON.

Arguments are those of its command-line reference (modelscope/ms-swift,
docs/source_en/Instruction/Command-line-parameters.md); `tuner_type` is the name since version 4,
`train_type` before. FSDP stands for its built-in `fsdp2` preset.
"""

from __future__ import annotations

import shlex
from typing import Any

from qdeploy.plan.emit import DS_FILE, Choice, choice_of, refuse
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
from qdeploy.plan.hf_names import attention_name
from qdeploy.plan.schema import Plan

_NAME = "ms-swift"
_FILE = "train.sh"


def emit(plan: Plan) -> dict[str, str]:
    """The command. Raises InputError for what ms-swift cannot express."""
    choice = choice_of(plan)
    no_activation_offload(choice, _NAME)
    _check_fsdp(choice)
    files = {_FILE: _script(choice)}
    return {**files, DS_FILE: choice.ds_json()} if choice.deepspeed else files


def _check_fsdp(choice: Choice) -> None:
    """Its presets: `fsdp2` (swift/config/fsdp2.json) shards weights and checkpoints blocks."""
    if not choice.fsdp:
        return
    if not choice.layout.checkpointing:
        raise refuse(
            _NAME, "fsdp without checkpointing (its preset has it)", "plan with --checkpointing"
        )
    if not choice.layout.shards_weights or choice.layout.offload != "none":
        raise refuse(
            _NAME,
            f"{choice.layout.strategy.name} with offload {choice.layout.offload}",
            "plan with --strategy fsdp --offload none, or with zero2 or zero3",
        )


def _script(choice: Choice) -> str:
    words = ["swift sft", f"--model {shlex.quote(choice.model)}", '--dataset "$DATASET"']
    words += [f"--{name} {_shown(value)}" for name, value in _arguments(choice).items()]
    command = " \\\n    ".join(words)
    request = choice.request
    environment = f"NPROC_PER_NODE={request.gpus}"
    if request.nodes > 1:
        environment += (
            f" NNODES={request.nodes}"
            ' NODE_RANK="${NODE_RANK:?number of this node}"'
            ' MASTER_ADDR="${MASTER_ADDR:?host of node 0}"'
        )
    return (
        "#!/bin/sh\nset -eu\n"
        ': "${DATASET:?file or folder with the training data}"\n'
        f"{environment} {command}\n"
    )


def _arguments(choice: Choice) -> dict[str, Any]:
    request = choice.request
    arguments: dict[str, Any] = {
        **_method(choice),
        "torch_dtype": _weights_dtype(choice),
        **mixed_precision(choice),
        "attn_impl": attention_name(request.attention),
        "max_length": request.seq_len,
        "packing": request.packing,
        "gradient_checkpointing": choice.layout.checkpointing and not choice.fsdp,
        "use_liger_kernel": liger(choice, _NAME),
        "torch_compile": request.compile,
        **batch_arguments(choice),
        **optimizer_settings(choice),
        "output_dir": "output",
    }
    if choice.deepspeed:
        arguments["deepspeed"] = DS_FILE
    if choice.fsdp:
        arguments["fsdp"] = "fsdp2"
    return arguments


def _weights_dtype(choice: Choice) -> str:
    """The type that weights are loaded in; PyTorch's mixed precision wants them in FP32."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    own_masters = choice.deepspeed or choice.request.peft is not None or choice.job.pure
    return names[choice.job.precision.dtype] if own_masters else "float32"


def _method(choice: Choice) -> dict[str, Any]:
    peft = check_peft(choice, _NAME)
    if peft is None:
        return {"tuner_type": "full"}
    method: dict[str, Any] = {
        "tuner_type": "lora",
        "lora_rank": choice.request.lora_rank,
        "lora_alpha": LORA_ALPHA_FACTOR * choice.request.lora_rank,
        "lora_dropout": LORA_DROPOUT if choice.request.lora_dropout else 0,
        "target_modules": lora_targets(choice) or ["all-linear"],
    }
    if embeddings := trained_embeddings(choice, _NAME):
        method["modules_to_save"] = embeddings
    base = choice.job.base
    if base != "16bit":
        method |= {"quant_method": "bnb", "quant_bits": 8 if base == "int8" else 4}
    if base.startswith("nf4"):
        method |= {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": base == "nf4-dq"}
    return method


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(shlex.quote(str(item)) for item in value)
    return shlex.quote(str(value))
