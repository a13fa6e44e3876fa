"""Building a transformers model whose every weight comes from the folder, or an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from qdeploy.core.console import warn
from qdeploy.core.errors import InputError
from qdeploy.models.checkpoint import Checkpoint
from qdeploy.models.family import model_type


def build_model(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor] | None
) -> PreTrainedModel:
    """The causal language model of a folder in float32, in evaluation mode.

    `config` is the parsed config.json; `tensors` replaces the folder's weights (None: the folder's
    own). On the GPU where there is one. Tensors that the model does not use are named in a warning.
    Raises InputError when the architecture is unknown, or a weight is missing or misshapen.
    """
    kind, model_config = _model_class(folder, config)
    load: Callable[..., tuple[PreTrainedModel, dict[str, Any]]] = kind.from_pretrained
    where = {"state_dict": tensors} if tensors is not None else {"local_files_only": True}
    with _quiet_transformers():
        try:
            model, info = load(
                folder if tensors is None else None,
                config=model_config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **where,
            )
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise InputError(f"cannot load {folder}: {str(error).splitlines()[0]}") from None
    _check_loaded(folder, info)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    nn.Module.to(model, device)
    model.train(False)
    model.requires_grad_(False)
    return model


def read_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All tensors of a checkpoint, as stored."""
    tensors: dict[str, Tensor] = {}
    for file in checkpoint.files:
        with safe_open(checkpoint.folder / file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 (no mapping)
                tensors[name] = stored.get_tensor(name)
    return tensors


def _model_class(folder: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    try:
        model_config = AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(model_config)]
    except (KeyError, ValueError, OSError):
        raise InputError(
            f"{folder}: transformers has no causal language model for {model_type(config)!r}"
        ) from None
    if hasattr(model_config, "quantization_config"):
        del model_config.quantization_config
    return kind, model_config


def _check_loaded(folder: Path, info: dict[str, Any]) -> None:
    problems = {
        "missing": sorted(info["missing_keys"]),
        "of another shape than config.json says": sorted(
            str(k[0]) for k in info["mismatched_keys"]
        ),
    }
    unused = sorted(info["unexpected_keys"])
    if unused:
        warn(f"{folder}: {len(unused)} tensors are not used by the model, first {unused[0]!r}")
    found = [
        f"{len(names)} tensors {problem}, first {names[0]!r}"
        for problem, names in problems.items()
        if names
    ]
    if found or info["error_msgs"]:
        raise InputError(
            f"{folder}: {'; '.join([*found, *info['error_msgs']])}",
            hint="config.json and the weights must come from the same model",
        )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bars and load reports: what they say is checked and raised instead."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
