"""FP16: the loss scale after each step, and the steps that were left out.

DeepSpeed scales in its own optimizer, everything else through accelerate's GradScaler; both are
behind the optimizer that the trainer steps.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qdeploy.core.console import warn
from qdeploy.core.errors import RunError
from qdeploy.train.callbacks.context import RunContext
from qdeploy.train.callbacks.events import Scaled
from qdeploy.train.callbacks.log import Log


class Precision(TrainerCallback):
    """Writes the loss scale of rank 0 into the log; all ranks have the same."""

    def __init__(self, context: RunContext, log: Log) -> None:
        self._scales = context.recipe.precision == "fp16"
        self._minimum = context.recipe.loss_scaling.minimum
        self._speaks = context.rank == 0
        self._log = log
        self._skipped = False

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Note whether the step was left out, before anything resets it."""
        if self._scales:
            self._skipped = bool(kwargs["optimizer"].step_was_skipped)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Write the scale down. Raises RunError when it has fallen to nothing."""
        if not self._scales:
            return
        scale = loss_scale(kwargs["optimizer"])
        if self._speaks:
            self._log.write(Scaled(step=state.global_step, scale=scale, skipped=self._skipped))
            if self._skipped:
                warn(f"step {state.global_step} left out: infinite gradients; scale {scale:g}")
        if self._skipped and scale < self._minimum:
            raise RunError(
                f"step {state.global_step}: gradients are infinite even at a loss scale of "
                f"{self._minimum}",
                hint="lower the learning rate, or train in bf16; checkpoints are kept",
            )


def loss_scale(optimizer: Any) -> float:
    """The present loss scale behind the trainer's optimizer."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is not None:
        return float(scaler.get_scale())
    return float(optimizer.optimizer.loss_scale)
