"""Stops a run at the first loss or gradient that is not finite, before the optimizer takes it.

- The loss is looked at when the forward pass is over. If it is bad, one more forward pass with
  hooks finds the first tensor that is: a parameter, or an activation made of finite ones. Where
  weights are sharded a forward pass is a collective, so all ranks make it.
- Gradients are looked at where they leave a block, when the backward pass is over. Block by block,
  last to first, the first one that is bad names the block whose backward pass made it. In FP16 an
  infinite gradient is no error: the loss scale falls and the step is left out.
- What slips through (a gradient of a weight only) shows in the norm that the trainer logs.

The optimizer has not stepped and nothing has been saved, so the newest checkpoint is good.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qdeploy.core.errors import RunError
from qdeploy.plan.layout import find_strategy
from qdeploy.train import checkpoints
from qdeploy.train.arguments import CHECKPOINTS
from qdeploy.train.callbacks.blame import first_bad_tensor, is_finite
from qdeploy.train.callbacks.context import RunContext
from qdeploy.train.callbacks.phases import tensors
from qdeploy.train.callbacks.ranks import all_ranks


class NonFinite(TrainerCallback):
    """Looks at losses and gradients; raises RunError from within the step."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        name = context.recipe.strategy.name
        self._together = name is not None and "weights" in find_strategy(name).shards
        self._step = 0
        self._diagnosing = False
        self._gradients: list[tuple[str, torch.Tensor]] = []
        self._queued = False
        self._handles: list[RemovableHandle] = []

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Follow the model's passes."""
        self._step = state.global_step + 1
        model = kwargs["model"]
        self._handles.append(model.register_forward_hook(self._after_forward, with_kwargs=True))
        if self._context.recipe.precision == "fp16" or self._context.recipe.compile:
            return
        for block_name, block in blocks(model):
            self._handles.append(block.register_forward_hook(self._gradient_watch(block_name)))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the step that begins."""
        self._step = state.global_step + 1

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Look at the norm of the gradients, which the trainer has at hand."""
        norm = kwargs["logs"].get("grad_norm")
        scaled = self._context.recipe.precision == "fp16"
        if not scaled and norm is not None and not math.isfinite(float(norm)):
            self._step = state.global_step
            self._stop(f"the gradient norm is {float(norm)}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Follow them no longer."""
        for handle in self._handles:
            handle.remove()

    def _after_forward(
        self, module: torch.nn.Module, arguments: Any, named: dict[str, Any], output: Any
    ) -> None:
        if self._diagnosing or not (module.training and torch.is_grad_enabled()):
            return
        tensor = judged(output)
        bad = tensor is not None and not is_finite(tensor)
        if self._together:
            bad = any(all_ranks(int(bad), self._context.device))
        if not bad:
            return
        self._diagnosing = True
        found = first_bad_tensor(module, arguments, named, whole=self._together)
        if found is None:
            rest = (
                "every tensor of the forward pass is finite on this rank, or the loss alone is bad"
            )
        else:
            rest = f"the first bad tensor is {found}"
        self._stop(f"the loss is not finite; {rest}")

    def _gradient_watch(self, name: str) -> Callable[[Any, Any, Any], None]:
        def after_forward(_module: Any, _arguments: Any, output: Any) -> None:
            if self._diagnosing:
                return
            tensor = next(tensors(output), None)
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(lambda gradient: self._look(name, gradient))  # type: ignore[no-untyped-call]

        return after_forward

    def _look(self, name: str, gradient: torch.Tensor) -> None:
        """Keep whether `gradient` is finite, without waiting for the device."""
        self._gradients.append((name, torch.isfinite(gradient).all()))
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        looked, self._gradients, self._queued = self._gradients, [], False
        good = torch.stack([finite for _, finite in looked]).tolist()
        if all(good):
            return
        at = good.index(False)
        behind = f"behind {looked[at][0]}" if at == 0 else f"in {looked[at - 1][0]}"
        self._stop(
            "the loss is finite, a gradient is not; the first bad tensor is the gradient of the "
            f"output of {looked[at][0]}, made by the backward pass {behind}"
        )

    def _stop(self, what: str) -> NoReturn:
        newest = checkpoints.latest(Path(self._context.out) / CHECKPOINTS)
        kept = "there is no checkpoint yet" if newest is None else f"{newest[0]} is kept"
        raise RunError(
            f"step {self._step}, rank {self._context.rank}: {what}",
            hint=f"{kept}; look at the data of this step, or lower the learning rate",
        )


def blocks(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The blocks of `model` with their names: the modules of its outermost lists."""
    found: list[tuple[str, torch.nn.Module]] = []
    lists: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or name.startswith(tuple(lists)):
            continue
        lists.append(f"{name}.")
        found += [(f"{name}.{at}", block) for at, block in module.named_children()]
    return found


def judged(output: Any) -> torch.Tensor | None:
    """What of a model's output tells whether its loss is finite: the loss, else what it is made of.

    TRL's fused head returns the log-probability of each token instead of the loss.
    """
    if isinstance(output, dict):
        for name in ("loss", "log_probs", "logits"):
            if output.get(name) is not None:
                return next(tensors(output[name]), None)
    return next(tensors(output), None)
