"""Warns when the ranks' peaks are far apart: the fullest decides what fits."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qdeploy.core.console import warn
from qdeploy.train.callbacks.context import RunContext
from qdeploy.train.callbacks.memory import Memory
from qdeploy.train.callbacks.ranks import all_ranks
from qdeploy.train.report import imbalance_warnings


class Imbalance(TrainerCallback):
    """Compares the ranks after the first step and at the end."""

    def __init__(self, context: RunContext, memory: Memory) -> None:
        self._context = context
        self._memory = memory
        self._compared = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After the first step."""
        if not self._compared:
            self._compared = True
            self._compare()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """At the end."""
        if self._compared:
            self._compare()

    def _compare(self) -> None:
        sizes = [self._memory.size_bytes(peak) for peak in self._memory.peaks.values()]
        peaks = all_ranks(max(sizes), self._context.device)
        if self._context.rank == 0:
            for line in imbalance_warnings(peaks):
                warn(line)
