"""Calibration tokens on their way through the model: the input of the block at hand.

Only real tokens count: padded positions are kept at zero between blocks, so that nothing
non-finite can arise in them and spread, and they are left out of statistics and errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from qdeploy.core.errors import RunError
from qdeploy.quant.skeleton import Call
from qdeploy.quant.source import all_finite


@dataclass
class StreamBatch:
    """One batch: B sequences of at most T tokens, hidden size H."""

    hidden: Tensor
    """float32 [B, T, H], on the CPU."""
    real: Tensor
    """bool [B * T], true for real tokens."""
    sampled: Tensor
    """Indices into B * T of the tokens on which errors are measured."""
    calls: list[Call]
    """One for each block."""


class Stream:
    """All batches, and the device on which blocks run."""

    def __init__(self, batches: list[StreamBatch], device: torch.device) -> None:
        self.batches = batches
        self.device = device

    def run(self, batch: StreamBatch, block: nn.Module, index: int) -> Tensor:
        """The output [B, T, H] of `block` (number `index`) for `batch`."""
        return batch.calls[index].run(block, batch.hidden.to(self.device))

    def advance(self, batch: StreamBatch, out: Tensor, name: str) -> None:
        """`out` of block `name` becomes the next block's input.

        Raises RunError when a real token's value is not finite.
        """
        flat = out.reshape(-1, out.shape[-1]).cpu()
        flat[~batch.real] = 0.0
        if not all_finite(flat):
            raise RunError(f"{name} gives NaN or infinity on the calibration data")
        batch.hidden = flat.reshape(out.shape)


def sample_positions(real: list[Tensor], count: int) -> list[Tensor]:
    """Indices of `count` true entries (all, if fewer), evenly spread over the masks, by mask."""
    flat = torch.cat(real).nonzero().flatten()
    if len(flat) > count:
        flat = flat[torch.linspace(0, len(flat) - 1, count).round().long()]
    starts = torch.tensor([0, *[len(mask) for mask in real]]).cumsum(0).tolist()
    return [flat[(flat >= start) & (flat < end)] - start for start, end in pairwise(starts)]
