"""What autograd keeps, by the module in whose forward pass it is kept first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Kept:
    """One storage that autograd keeps."""

    module: str
    """Path of the innermost module that was running."""
    shape: tuple[int, ...]
    """Of the tensor through which it was kept; a view may be smaller than its storage."""
    dtype: str
    bytes: int
    """Of the whole storage."""
    block: int | None = None
    """Number of the block that `module` is in; None: before or behind the blocks."""
    module_in_block: str = ""
    """Path of `module` within its block; empty: the block itself."""


class KeptTensors:
    """Collects `Kept` while the block of `watch` runs.

    Storages of parameters and buffers, and 16-bit copies of parameters, are no activations.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = {_address(t) for t in [*model.parameters(), *model.buffers()]}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._running = [""]
        self._found: dict[int, Kept] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Collect what is kept inside."""
        hooks = [
            hook
            for path, module in self._model.named_modules()
            for hook in (
                module.register_forward_pre_hook(self._enter(path)),
                module.register_forward_hook(self._leave, always_call=True),
            )
        ]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def found(self, leave_out: Iterable[torch.Tensor] = ()) -> list[Kept]:
        """What was kept, in the order of the forward pass."""
        copies = {_address(tensor) for tensor in leave_out}
        return [kept for address, kept in self._found.items() if address not in copies]

    def release(self) -> None:
        """Let go of the storages, so that a backward pass frees them when it is done."""
        self._storages.clear()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._own and address not in self._found:
            # Held, since the address of a freed storage is used again.
            self._storages[address] = storage
            dtype = str(tensor.dtype).removeprefix("torch.")
            path, shape = self._running[-1], tuple(tensor.shape)
            self._found[address] = Kept(path, shape, dtype, storage.nbytes())
        return tensor

    def _enter(self, path: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            self._running.append(path)

        return hook

    def _leave(self, *_: Any) -> None:
        self._running.pop()


def _address(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address
