"""What transformers' Trainer calls the choices of a plan (transformers/training_args.py)."""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.toml import read_toml
from qdeploy.plan.request import Attention

_SHAPES = "qdeploy.models.shapes"
_OPTIMIZERS = {
    "adamw": "adamw_torch_fused",
    "adamw_foreach": "adamw_torch",
    "adamw8bit": "adamw_bnb_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
    "sgd_momentum": "sgd",
}
_ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
_LR = 1e-5
_LR_ADAPTERS = 1e-4


def optimizer_arguments(name: str) -> dict[str, Any]:
    """`optim` (and `optim_args`) for the optimizer `name`. Raises InputError for another one."""
    if name not in _OPTIMIZERS:
        raise InputError(
            f"transformers' Trainer has no optimizer {name}",
            hint=f"plan with one of: {', '.join(sorted(_OPTIMIZERS))}",
        )
    arguments: dict[str, Any] = {"optim": _OPTIMIZERS[name]}
    if name == "sgd_momentum":
        arguments["optim_args"] = "momentum=0.9"
    return arguments


def attention_name(attention: Attention) -> str:
    """The `attn_implementation` of `attention`."""
    return _ATTENTION[attention]


def learning_rate(peft: str | None) -> float:
    """Where a search starts: 1e-5 for all weights, 1e-4 for adapters (ms-swift's defaults)."""
    return _LR if peft is None else _LR_ADAPTERS


def model_id(name: str) -> str:
    """What `from_pretrained` takes for the model `name`: the hub id of a shipped shape, else it."""
    if name not in plugin_names(_SHAPES, ".toml"):
        return name
    aliases: list[str] = read_toml(_SHAPES, name)[0]["aliases"]
    return next((alias for alias in aliases if "/" in alias), name)
