"""Steps, loss, speed, memory and time left on stderr; the same as JSON lines in the log."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qdeploy.core.console import Bar, progress
from qdeploy.core.units import format_bytes
from qdeploy.train.callbacks.context import RunContext
from qdeploy.train.callbacks.events import Logged, Stepped
from qdeploy.train.callbacks.log import Log
from qdeploy.train.callbacks.memory import Memory


class Progress(TrainerCallback):
    """A bar on rank 0; each rank writes its own log."""

    def __init__(self, context: RunContext, log: Log, memory: Memory) -> None:
        self._context = context
        self._log = log
        self._memory = memory
        self._tokens: list[torch.Tensor] = []
        self._began = time.perf_counter()
        self._bar: Bar | None = None
        self._open = ExitStack()
        self._loss = ""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Open the bar and count tokens."""
        hook = kwargs["model"].register_forward_pre_hook(self._count, with_kwargs=True)
        self._open.callback(hook.remove)
        if self._context.rank == 0:
            left = state.max_steps - state.global_step
            self._bar = self._open.enter_context(progress("training", left))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A step begins."""
        self._tokens.clear()
        self._began = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A step is over."""
        tokens = int(sum(int(count) for count in self._tokens))
        seconds = time.perf_counter() - self._began
        self._log.write(
            Stepped(time=time.time(), step=state.global_step, seconds=seconds, tokens=tokens)
        )
        if self._bar is not None:
            self._bar.advance(note=self._note(tokens, seconds))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """The trainer has a loss."""
        loss = _number(kwargs["logs"], "loss")
        if self._context.rank != 0 or loss is None:
            return
        self._loss = f"loss {loss:.4f} at step {state.global_step}, "
        self._log.write(
            Logged(
                step=state.global_step,
                loss=loss,
                grad_norm=_number(kwargs["logs"], "grad_norm"),
                learning_rate=_number(kwargs["logs"], "learning_rate"),
            )
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar and count no longer."""
        self._open.close()

    def _count(self, module: torch.nn.Module, _arguments: Any, named: dict[str, Any]) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        mask, ids = named.get("attention_mask"), named.get("input_ids")
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            self._tokens.append(mask.detach().sum())
        elif isinstance(ids, torch.Tensor):
            self._tokens.append(torch.tensor(ids.numel()))

    def _note(self, tokens: int, seconds: float) -> str:
        peaks = [self._memory.size_bytes(peak) for peak in self._memory.peaks.values()]
        speed = f"{tokens / seconds:.0f} tokens/s a rank"
        return f"{self._loss}{speed}, peak {format_bytes(max(peaks))}"


def _number(logs: Any, name: str) -> float | None:
    value = logs.get(name)
    return None if value is None or not math.isfinite(float(value)) else float(value)
