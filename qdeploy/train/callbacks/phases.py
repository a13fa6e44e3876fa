"""Tells when a forward pass, a backward pass and the optimizer's step begin.

The trainer's events do not say: DeepSpeed steps inside the trainer's call of `backward`. So hooks
of autograd tell. The loss is counted to the forward pass: the backward pass begins with the first
gradient of what the model returned, and ends when autograd has no more work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from qdeploy.train.callbacks.events import Phase


class Phases:
    """Calls `enter(phase)` as passes of a model in training begin."""

    def __init__(self, enter: Callable[[Phase], None]) -> None:
        self._enter = enter
        self._handles: list[RemovableHandle] = []
        self._in_backward = False

    def watch(self, model: torch.nn.Module) -> None:
        """Follow `model` from now on."""
        self._handles += [
            model.register_forward_pre_hook(self._before_forward),
            model.register_forward_hook(self._after_forward),
        ]

    def close(self) -> None:
        """Follow it no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before_forward(self, module: torch.nn.Module, _arguments: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._in_backward = False
            self._enter("forward")

    def _after_forward(self, module: torch.nn.Module, _arguments: Any, output: Any) -> None:
        if module.training and torch.is_grad_enabled():
            for tensor in tensors(output):
                if tensor.grad_fn is not None:
                    tensor.grad_fn.register_prehook(self._before_backward)

    def _before_backward(self, _gradients: Any) -> None:
        if self._in_backward:
            return
        self._in_backward = True
        self._enter("backward")
        Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._enter("step")


def tensors(output: Any) -> Iterator[torch.Tensor]:
    """The tensors that a module returned, also within mappings and sequences."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from tensors(value)
