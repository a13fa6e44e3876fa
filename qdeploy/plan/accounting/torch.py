"""What PyTorch alone allocates: one GPU, DistributedDataParallel, fully sharded (FSDP)."""

from __future__ import annotations

from qdeploy.core.errors import InputError
from qdeploy.plan.accounting._framework import need_bytes, per_gpu
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.request import Unit

STRATEGIES = ("none", "ddp", "fsdp-grad-op", "fsdp", "fsdp1")
NOTE = (
    "accounting torch: autocast over FP32 weights (4 + 4 + 8 bytes a parameter with AdamW and a "
    "16-bit copy of the matrices); FSDP divides the 16 bytes by the number of GPUs"
)

UNIT: Unit = "GiB"

__all__ = ["NOTE", "STRATEGIES", "UNIT", "capacity_bytes", "check", "need_bytes", "per_gpu"]


def check(job: Job, layout: Layout) -> None:
    """Raise InputError for what the layout cannot do."""
    if layout.fsdp and job.optimizer.bits < 32:
        raise InputError(
            f"{job.optimizer.name} does not work on the sharded tensors of fsdp",
            hint="use adamw, or ddp or zero2",
        )


def capacity_bytes(job: Job) -> int:
    """What a peak is held against: the memory that CUDA reports, less what others hold."""
    return max(0, job.gpu.memory_bytes - job.request.occupied_bytes)
