"""What DeepSpeed allocates under ZeRO 1 to 3, and plain PyTorch without sharding (default)."""

from __future__ import annotations

from qdeploy.core.errors import InputError
from qdeploy.plan.accounting._framework import need_bytes, per_gpu
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.request import Unit

STRATEGIES = ("none", "ddp", "zero1", "zero2", "zero3")
NOTE = (
    "accounting deepspeed: masters and optimizer states are sharded from ZeRO-1 on; ZeRO-2 holds "
    "2P + 18P/N bytes of states at the step with AdamW. The rule of thumb (--accounting article) "
    "keeps FP32 masters whole up to ZeRO-2 and charges 20 bytes a parameter"
)

UNIT: Unit = "GiB"

__all__ = ["NOTE", "STRATEGIES", "UNIT", "capacity_bytes", "check", "need_bytes", "per_gpu"]


def check(job: Job, layout: Layout) -> None:
    """Raise InputError for what the layout cannot do."""
    name = layout.strategy.name
    if layout.strategy.engine == "deepspeed" and job.pure:
        raise InputError(
            f"{name} keeps FP32 masters: bf16-pure is for none, ddp and fsdp",
            hint="use precision bf16, or another strategy",
        )
    if layout.offload != "none" and not job.optimizer.cpu_offload:
        raise InputError(
            f"offload needs an optimizer that DeepSpeed runs on the CPU, {job.optimizer.name} "
            "is not one",
            hint="use adamw or lion, or offload none",
        )


def capacity_bytes(job: Job) -> int:
    """What a peak is held against: the memory that CUDA reports, less what others hold."""
    return max(0, job.gpu.memory_bytes - job.request.occupied_bytes)
