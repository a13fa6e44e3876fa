"""Peak memory of this rank by phase beside the plan; after a step, whether the run will fit."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qdeploy.core.console import say, warn
from qdeploy.core.units import MIB, format_bytes
from qdeploy.train.callbacks.context import RunContext
from qdeploy.train.callbacks.events import PHASES, Ended, Grew, Peak, Phase, Started
from qdeploy.train.callbacks.fit import Expected, expected_peak, said, verdict
from qdeploy.train.callbacks.log import Log
from qdeploy.train.callbacks.phases import Phases
from qdeploy.train.callbacks.planned import planned_bytes
from qdeploy.train.callbacks.probe import Probe
from qdeploy.train.callbacks.ranks import all_ranks

# Smaller growth is not worth a line in the log.
_LEAST_GROWTH_BYTES = MIB


class Memory(TrainerCallback):
    """Reads the peaks at the end of each phase and writes them down when they grow."""

    def __init__(self, context: RunContext, log: Log) -> None:
        self._context = context
        self._log = log
        self._probe = Probe(context.device)
        self._phase: Phase = "load"
        self._phases = Phases(self._enter)
        self._planned = planned_bytes(context.recipe, context.planned)
        self._written: dict[Phase, Peak] = {}
        self._before_step: int | None = None
        self._judged = False
        self.peaks: dict[Phase, Peak] = {}
        """The peaks of every phase so far."""
        self.before = self._probe.read()
        """What this process had before the model was loaded."""
        log.write(
            Started(
                time=time.time(),
                rank=context.rank,
                world=context.world,
                device=context.device,
                resident_by=self._probe.method,
                before=self.before,
                planned=self._planned,
            )
        )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Follow the model's passes."""
        self._phases.watch(kwargs["model"])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note what is there before the first step."""
        if not self._judged:
            self._before_step = self._probe.now_bytes()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The step's phases are over."""
        self._enter("between")
        if not self._judged:
            self._judged = True
            self._judge()
        self._write(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say what was measured beside what was planned."""
        self._enter("between")
        self._phases.close()
        self._write(state.global_step)
        self._log.write(Ended(time=time.time(), step=state.global_step))
        if self._context.rank == 0 and self._judged:
            say(f"memory of rank 0: {self._compared()}")

    def size_bytes(self, peak: Peak) -> int:
        """What `peak` comes to on the plan's basis: of the device, or above the bare process."""
        if peak.device_bytes is not None:
            return peak.device_bytes
        return max(0, peak.resident_bytes - self.before.resident_bytes)

    def _enter(self, phase: Phase) -> None:
        """The phase that was is over, `phase` begins."""
        peak, old = self._probe.read(), self.peaks.get(self._phase)
        self.peaks[self._phase] = peak if old is None else _larger(old, peak)
        self._phase = phase

    def _write(self, step: int) -> None:
        if self._written.keys() != self.peaks.keys() or any(
            _growth(self._written[phase], peak) >= _LEAST_GROWTH_BYTES
            for phase, peak in self.peaks.items()
        ):
            self._written = dict(self.peaks)
            self._log.write(Grew(step=step, peaks=self._written))

    def _judge(self) -> None:
        """Say whether the steps to come will fit, for the rank or node with the least room."""
        after = self._probe.now_bytes()
        grown = 0 if after is None or self._before_step is None else after - self._before_step
        expected = expected_peak(self.peaks, grown)
        device = self._context.device
        low = all_ranks(expected.low_bytes, device)
        high = all_ranks(expected.high_bytes, device)
        if self._context.rank != 0:
            return
        planned = self._context.planned.per_gpu.total_bytes
        if device == "cuda":
            whole = torch.cuda.mem_get_info()[1]
            capacity = min(self._context.capacity_bytes or whole, whole)
            worst, where = Expected(max(low), max(high)), "a GPU"
        else:
            local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            capacity = self._context.capacity_bytes or psutil.virtual_memory().total
            worst, where = Expected(_fullest(low, local), _fullest(high, local)), "the node"
            planned *= local
        line = said(worst, capacity, where, planned)
        (say if verdict(worst, capacity) == "fits" else warn)(line)

    def _compared(self) -> str:
        found = []
        for phase in PHASES:
            if phase in self.peaks and phase in self._planned:
                size = format_bytes(self.size_bytes(self.peaks[phase]))
                found.append(f"{phase} {size} (planned {format_bytes(self._planned[phase])})")
        return ", ".join(found)


def _fullest(sizes: list[int], local: int) -> int:
    """The sum over the ranks of the fullest node; a node has `local` ranks one after another."""
    return max(sum(sizes[start : start + local]) for start in range(0, len(sizes), local))


def _larger(old: Peak, new: Peak) -> Peak:
    values = {
        name: value if other is None else other if value is None else max(value, other)
        for name, value in old.model_dump().items()
        for other in [getattr(new, name)]
    }
    return Peak(**values)


def _growth(old: Peak, new: Peak) -> int:
    pairs = zip(old.model_dump().values(), new.model_dump().values(), strict=True)
    return max(int(after - before) for before, after in pairs if after is not None)
