"""The result of a run: a plain Hugging Face folder, or adapters that are merged on demand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdeploy.core.artifacts import new_folder, read_json, refuse_existing, sha256_files, write_text
from qdeploy.core.errors import InputError
from qdeploy.models.source import model_folder
from qdeploy.train.arguments import CHECKPOINTS
from qdeploy.train.peft_config import compute_dtype
from qdeploy.train.recipe import Recipe

if TYPE_CHECKING:
    import torch

MODEL, ADAPTER = "model", "adapter"
"""Folders of the result in `out`: all weights, adapters."""
REPORT = "train_report.json"
"""The measured run in `out`."""


def result_folder(recipe: Recipe) -> Path:
    """Where the run's result will lie."""
    return Path(recipe.out) / (MODEL if recipe.peft is None else ADAPTER)


def check_out(recipe: Recipe, *, resume: bool) -> None:
    """Raise InputError where `out` holds a finished run, or without `resume` an unfinished one."""
    result = result_folder(recipe)
    if result.exists():
        raise InputError(
            f"{result} exists: this run is finished", hint="choose another `out`, or remove it"
        )
    checkpoints = Path(recipe.out) / CHECKPOINTS
    if not resume and any(checkpoints.glob("checkpoint-*")):
        raise InputError(
            f"{checkpoints} holds the checkpoints of an earlier run",
            hint="go on with --resume, choose another `out`, or remove them",
        )


def save_result(trainer: Any, recipe: Recipe) -> Path:
    """Write the trained model or its adapters; all ranks must call it.

    Weights are written in the type of the matrix products. The folder is complete or absent.
    """
    folder = result_folder(recipe)
    # Gathers what is sharded, so it is called by all; only the first rank gets tensors.
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if trainer.is_world_process_zero():
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_torch_compile=False)
        dtype = compute_dtype(recipe)
        # DeepSpeed's copy of a tied weight is no longer tied.
        for name, source in model.all_tied_weights_keys.items():
            if name in state and source in state:
                state[name] = state[source]
        with new_folder(folder) as work:
            model.save_pretrained(work, state_dict=_cast(state, dtype))
            trainer.processing_class.save_pretrained(work)
            if recipe.peft is None:
                _describe(work / "config.json", dtype)
    trainer.accelerator.wait_for_everyone()
    return folder


def result_digest(folder: Path) -> str:
    """The sha256 over the names and contents of the weight files of a result."""
    return sha256_files(folder, [path.name for path in folder.glob("*.safetensors")])


def check_mergeable(recipe: Recipe) -> None:
    """Raise InputError for a recipe without adapters, and where there is a merged model already."""
    target = Path(recipe.out) / MODEL
    if recipe.peft is None:
        raise InputError(
            "the recipe trains all weights: there is nothing to merge",
            hint=f"leave --merge out; the model will be in {target}",
        )
    refuse_existing(target)


def merge_result(recipe: Recipe) -> Path:
    """Merge the adapters of a finished run into the model they are for; returns the new folder.

    Raises InputError where the run has no adapters, or they are not there.
    """
    check_mergeable(recipe)
    adapter, target = Path(recipe.out) / ADAPTER, Path(recipe.out) / MODEL
    if not adapter.is_dir():
        raise InputError(f"no adapters in {adapter}", hint="train the recipe first")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        model_folder(recipe.model), dtype=compute_dtype(recipe), local_files_only=True
    )
    merged: Any = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    with new_folder(target) as work:
        merged.save_pretrained(work)
        AutoTokenizer.from_pretrained(adapter, local_files_only=True).save_pretrained(work)
    return target


def _describe(config: Path, dtype: torch.dtype) -> None:
    """Write down the type of the weights, and not that training had no use for a cache."""
    document = read_json(config)
    document |= {"dtype": str(dtype).removeprefix("torch."), "use_cache": True}
    write_text(config, json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def _cast(state: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Floating tensors in `dtype`; tied ones stay tied, so that they are written once."""
    cast: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
    result = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in cast:
            floating = tensor.is_floating_point()
            cast[key] = tensor.detach().to("cpu", dtype if floating else tensor.dtype)
        result[name] = cast[key]
    return result
