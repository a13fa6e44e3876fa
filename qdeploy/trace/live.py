"""Bytes of tensors that are there at each moment of a run, on meta tensors too."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that an operation makes, from its birth to its end.

    Storages are told apart by their address in PyTorch, which is used again after their end; an
    event therefore names the storage's number in the order of birth.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        """Storages of `known` tensors are there before and are not followed."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = [tensor.untyped_storage() for tensor in known]
        self._known_addresses = {storage._cdata for storage in self._known}
        self.events: list[tuple[int, int]] = []
        """(number of the storage, bytes; negative at its end)."""
        self._numbers: dict[int, int] = {}
        self._born = 0

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of the tensor's storage; None for one that was there before."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def live(self) -> int:
        """Bytes that are there now."""
        return sum(size for _, size in self.events)

    def peak_since(self, start: int, leaving_out: Collection[int | None]) -> int:
        """Most bytes above those at event `start`, storages `leaving_out` not counted."""
        now = peak = 0
        for number, size in self.events[start:]:
            if number not in leaving_out:
                now += size
                peak = max(peak, now)
        return peak

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._numbers or address in self._known_addresses:
            return
        number, self._born = self._born, self._born + 1
        self._numbers[address] = number
        self.events.append((number, size))
        weakref.finalize(storage, self._end, address, number, size)

    def _end(self, address: int, number: int, size: int) -> None:
        if self._numbers.get(address) == number:
            del self._numbers[address]
        self.events.append((number, -size))
