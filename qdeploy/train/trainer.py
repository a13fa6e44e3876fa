"""TRL's SFTTrainer with our order of the data and checkpoints that are complete or absent."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from trl.trainer.sft_trainer import SFTTrainer

from qdeploy.core.errors import RunError
from qdeploy.train import checkpoints
from qdeploy.train.arguments import CHECKPOINTS
from qdeploy.train.order import LongestFirst
from qdeploy.train.recipe import Recipe

_FULL_BYTES = 1 << 20
# What torch says when a file cannot be written to its end (caffe2/serialize/inline_container.cc).
_WRITE_ERRORS = ("inline_container", "PytorchStreamWriter", "No space left", "I/O error")


@dataclass(frozen=True)
class Run:
    """What our trainer knows beside TrainingArguments."""

    recipe: Recipe
    fingerprint: dict[str, str]


class Trainer(SFTTrainer):
    """SFTTrainer for a recipe."""

    def __init__(self, *args: Any, run: Run, **kwargs: Any) -> None:
        self._run = run
        self._folder = Path(run.recipe.out) / CHECKPOINTS
        super().__init__(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: a checkpoint is no release."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        recipe = self._run.recipe
        return LongestFirst(
            [len(ids) for ids in dataset["input_ids"]],
            global_batch=recipe.global_batch,
            seed=recipe.seed,
        )

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        found: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        if self.args.fp16:
            from accelerate.utils import GradScalerKwargs

            scaling = self._run.recipe.loss_scaling
            handler = GradScalerKwargs(
                init_scale=float(scaling.initial), growth_interval=scaling.window
            )
            found["kwargs_handlers"].append(handler)
        return found

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._folder / checkpoints.STAGING)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder, step = self._folder, self.state.global_step
        if self.is_world_process_zero():
            checkpoints.discard_staging(folder)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                keep = self._run.recipe.save.keep
                checkpoints.complete(folder, step, self._run.fingerprint, keep)
        except Exception as error:
            if not _is_write_error(error):
                raise
            raise RunError(
                f"the checkpoint of step {step} could not be written to {folder}: "
                f"{_reason(error, folder)}; earlier checkpoints are untouched",
                hint="make room and go on with --resume",
            ) from error
        self.accelerator.wait_for_everyone()


def _is_write_error(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, OSError) or any(text in str(error) for text in _WRITE_ERRORS)


def _reason(error: Exception, folder: Path) -> str:
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    if full or shutil.disk_usage(folder).free < _FULL_BYTES:
        return "no space left on the disk"
    return str(error).strip().splitlines()[0]
