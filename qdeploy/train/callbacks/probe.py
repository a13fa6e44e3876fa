"""Reads a process's memory: resident and given out on CPUs; allocated, reserved, device on GPUs."""

from __future__ import annotations

import torch

from qdeploy.train.callbacks.context import Device
from qdeploy.train.callbacks.events import Peak
from qdeploy.train.callbacks.resident import given_out_bytes, resident


class Probe:
    """Peaks of this process since the last `read`."""

    def __init__(self, device: Device) -> None:
        self._cuda = device == "cuda"
        self._resident = resident()
        self.method = self._resident.METHOD

    def read(self) -> Peak:
        """The peaks since the last call; the next ones begin now."""
        size = self._resident.peak_bytes()
        self._resident.forget()
        if not self._cuda:
            return Peak(resident_bytes=size, allocated_bytes=given_out_bytes())
        allocated = torch.cuda.max_memory_allocated()
        reserved = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return Peak(
            resident_bytes=size,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=reserved + _beside_bytes(),
        )

    def now_bytes(self) -> int | None:
        """What is allocated at present, in the sense of `Peak.allocated_bytes`."""
        return torch.cuda.memory_allocated() if self._cuda else given_out_bytes()


def _beside_bytes() -> int:
    """What of the GPU's memory is in use but not PyTorch's: CUDA context, libraries, others."""
    free, total = torch.cuda.mem_get_info()
    return max(0, total - free - torch.cuda.memory_reserved())
