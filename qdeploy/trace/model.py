"""A model class of transformers on the meta device, from a parsed config.json."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qdeploy.core.errors import InputError
from qdeploy.models.family import model_type
from qdeploy.plan.request import Attention
from qdeploy.trace.attention import FLASH, register


def build(config: dict[str, Any], *, dtype: torch.dtype, attention: Attention) -> nn.Module:
    """The model in training mode, without any weights in memory.

    `sdpa` is what transformers takes unless told: its own operations where a class has no SDPA.
    Raises InputError where transformers has no class for the model type, or no such attention.
    """
    from transformers import AutoConfig

    kind = model_type(config)
    sizes = {key: value for key, value in config.items() if key != "model_type"}
    try:
        parsed = AutoConfig.for_model(kind, **sizes)
    except ValueError:
        raise no_class(kind) from None
    model_class = _model_class(parsed, kind)
    register()
    model = _create(model_class, parsed, kind, dtype, attention)
    return model.train()


def blocks(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """Path and modules of the list of blocks: the outermost list with the most parameters.

    Raises InputError when the model has no list of modules.
    """
    lists = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)
    }
    outermost = {
        path: module
        for path, module in lists.items()
        if not any(path.startswith(f"{other}.") for other in lists)
    }
    if not outermost:
        raise InputError(
            f"{type(model).__name__} has no list of blocks, so that nothing can be traced by block"
        )
    path = max(outermost, key=lambda name: _parameters(outermost[name]))
    return path, list(outermost[path])


def no_class(kind: str) -> InputError:
    """The error that transformers has no class for model type `kind`."""
    return InputError(
        f"transformers has no class for model type {kind!r}, and code from the hub is not run",
        hint="plan it without --trace, by its shape",
    )


def _model_class(config: Any, kind: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if type(config) in AutoModelForCausalLM._model_mapping and kind != "bert":
        return AutoModelForCausalLM
    if type(config) in AutoModelForSequenceClassification._model_mapping:
        return AutoModelForSequenceClassification
    raise InputError(f"model type {kind!r} has no language model or classifier in transformers")


def _create(
    model_class: Any, config: Any, kind: str, dtype: torch.dtype, attention: Attention
) -> nn.Module:
    name = {"flash": FLASH, "sdpa": "sdpa", "eager": "eager"}[attention]
    with torch.device("meta"):
        try:
            model: nn.Module = model_class.from_config(
                config, dtype=dtype, attn_implementation=name
            )
        except (KeyError, ValueError) as error:
            if attention == "sdpa":
                return _create(model_class, config, kind, dtype, "eager")
            raise InputError(
                f"transformers has no {attention} attention for model type {kind!r} that can be "
                f"traced: {str(error).splitlines()[0]}",
                hint="use --attention eager",
            ) from None
    if attention == "flash" and not getattr(model, "_supports_flash_attn", False):
        raise InputError(
            f"transformers has no flash attention for model type {kind!r}",
            hint="use --attention eager",
        )
    return model


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
