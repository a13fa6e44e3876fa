"""FSDP for transformers' Trainer: `training_arguments.json`, arguments of TrainingArguments.

`fsdp` and the keys of `fsdp_config` are those of transformers 5 (training_args.py,
_process_fsdp_args), FSDP 2.
"""

from __future__ import annotations

import json
from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.plan.emit import Choice, choice_of
from qdeploy.plan.emit._trainer import (
    batch_arguments,
    liger,
    mixed_precision,
    no_activation_offload,
    optimizer_settings,
)
from qdeploy.plan.schema import Plan

_NAME = "TrainingArguments"


def emit(plan: Plan) -> dict[str, str]:
    """The arguments. Raises InputError when the plan's choice is not fsdp."""
    choice = choice_of(plan)
    if not choice.fsdp:
        raise InputError(
            f"the plan chose {choice.layout.strategy.name}, not fsdp",
            hint="plan with --strategy fsdp, or emit deepspeed or accelerate",
        )
    no_activation_offload(choice, _NAME)
    return {"training_arguments.json": json.dumps(_arguments(choice), indent=2) + "\n"}


def _arguments(choice: Choice) -> dict[str, Any]:
    return {
        **batch_arguments(choice),
        **mixed_precision(choice),
        **optimizer_settings(choice),
        # Checkpointing is FSDP's own, below: the Trainer's would gather each block once more.
        "use_liger_kernel": liger(choice, _NAME),
        "torch_compile": choice.request.compile,
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": choice.layout.shards_weights,
            "activation_checkpointing": choice.layout.checkpointing,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "FULL_STATE_DICT",
            "cpu_offload": choice.layout.offload != "none",
        },
    }
