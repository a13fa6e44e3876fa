"""One number of every rank."""

from __future__ import annotations

import torch
import torch.distributed

from qdeploy.train.callbacks.context import Device


def all_ranks(value: int, device: Device) -> list[int]:
    """`value` of each rank, in order of the ranks; every rank must call it."""
    if not torch.distributed.is_initialized():
        return [value]
    mine = torch.tensor([value], dtype=torch.int64, device=device)
    every = [torch.zeros_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(every, mine)
    return [int(item) for item in every]
