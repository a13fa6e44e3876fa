"""What PyTorch still holds after a forward pass, for tests of what a block keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from allocator import allocated
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TOKENS = 48  # no width of the models


class Held(TorchDispatchMode):
    """Remembers each storage that an operation wrote, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._written[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def bytes_without(self, known: set[int]) -> int:
        """Bytes of the storages that are still there and not `known`."""
        return sum(
            nbytes
            for storage, (reference, nbytes) in self._written.items()
            if storage not in known and not reference.expired()
        )


class Dropout(torch.autograd.Function):
    """Keeps a mask of one byte, as dropout does on a GPU."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, probability: float) -> torch.Tensor:
        mask = torch.rand_like(x) > probability
        context.save_for_backward(mask)
        return x * mask / (1 - probability)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        raise AssertionError("only the forward pass is counted")


def dropout(x: torch.Tensor, probability: float) -> torch.Tensor:
    """Dropout as on a GPU: with probability 0 it does nothing."""
    return Dropout.apply(x, probability) if probability else x


def storages(tensors: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def block_bytes(
    make: Callable[[], torch.nn.Module],
    call: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor],
    *,
    hidden: int,
    dtype: torch.dtype,
) -> float:
    """Bytes a token that one more block holds, its input among them."""
    totals = []
    for count in (2, 3):
        blocks = [make().to(dtype) for _ in range(count)]
        x = torch.randn(1, TOKENS, hidden, dtype=dtype, requires_grad=True)
        with Held() as held:
            y = x
            for block in blocks:
                y = call(block, y)
            own = storages(p for block in blocks for p in [*block.parameters(), *block.buffers()])
            totals.append(held.bytes_without(own | storages([x])))
    return (totals[1] - totals[0]) / TOKENS


def backward_bytes(make: Callable[[], torch.nn.Module], *, hidden: int) -> float:
    """Bytes a token that a BF16 block's backward pass has at its peak beyond what was kept.

    From two lengths, so that what does not grow with tokens cancels out; the gradient that comes
    from the block above is counted.
    """
    peaks = []
    for tokens in (256, 512):
        block = make().bfloat16()
        x = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
        for tensor in (x, *block.parameters()):
            tensor.grad = torch.zeros_like(tensor)
        outputs: list[torch.Tensor] = []

        def forward(block: Any = block, x: Any = x, outputs: Any = outputs) -> None:
            outputs.append(block(x))

        peak_bytes(forward)  # the profiler knows the sizes only of what it saw allocated
        gradient = torch.ones_like(outputs[0])
        peaks.append(peak_bytes(partial(outputs[0].backward, gradient)) + gradient.nbytes)
    return (peaks[1] - peaks[0]) / 256


def peak_bytes(step: Callable[[], object]) -> int:
    """The largest sum of what the allocator gave out during `step` and had not back."""
    return allocated(step)[1]
