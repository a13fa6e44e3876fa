"""The order in which sequences are trained on.

A shuffle that depends on seed, epoch and global batch alone, so that a resumed run goes on where
it stopped, and another split of the batch trains on the same steps. The first step has the longest
sequences: what memory the run needs at most shows at once. Each epoch has whole optimizer steps
only; which sequences are left over differs from epoch to epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class LongestFirst(Sampler[int]):
    """Indices of one epoch, the same on all ranks; `set_epoch` chooses the epoch."""

    def __init__(self, lengths: list[int], *, global_batch: int, seed: int) -> None:
        self._lengths = lengths
        self._kept = len(lengths) // global_batch * global_batch
        self._global_batch = global_batch
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of epoch `epoch`, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._kept

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order: list[int] = torch.randperm(len(self._lengths), generator=generator).tolist()
        if self._epoch == 0:
            longest = sorted(order, key=lambda index: -self._lengths[index])[: self._global_batch]
            chosen = set(longest)
            order = [*longest, *(index for index in order if index not in chosen)]
        return iter(order[: self._kept])
