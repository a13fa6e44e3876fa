"""The model of a run, loaded in the type that its strategy trains in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from qdeploy.core.errors import InputError
from qdeploy.plan.layout import find_strategy
from qdeploy.train.arguments import attention_name
from qdeploy.train.peft_config import compute_dtype, quantization_config
from qdeploy.train.recipe import Recipe


def load_model(recipe: Recipe, folder: Path) -> PreTrainedModel:
    """The causal language model in `folder`, to be trained.

    Under ZeRO-3 each rank loads its shard alone, so the DeepSpeed configuration must be active
    (TrainingArguments made) before. Raises InputError where transformers cannot load it.
    """
    load: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_pretrained
    disable_progress_bar()
    options: dict[str, Any] = {}
    quantization = quantization_config(recipe)
    if quantization is not None:
        options["quantization_config"] = quantization
        if torch.cuda.is_available():
            options["device_map"] = {"": torch.cuda.current_device()}
    try:
        model = load(
            folder,
            dtype=stored_dtype(recipe),
            attn_implementation=attention_name(recipe),
            local_files_only=True,
            **options,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(f"cannot load {folder}: {str(error).splitlines()[0]}") from None
    return model


def stored_dtype(recipe: Recipe) -> torch.dtype:
    """The type in which weights are held while they are trained.

    Autocast (one process, DDP, FSDP) trains FP32 weights and casts them for each product.
    DeepSpeed casts the weights and keeps its own FP32 masters. Frozen weights under adapters need
    no masters.
    """
    compute: torch.dtype = compute_dtype(recipe)
    engine = find_strategy(str(recipe.strategy.name)).engine
    pure = recipe.precision == "bf16-pure"
    if engine == "deepspeed" or pure or recipe.peft is not None:
        return compute
    return torch.float32
