"""The rule of thumb: 20 bytes a parameter, decimal gigabytes, cards as they are sold.

2+4 weights (16-bit copy and FP32 master), 2+4 gradients, 8 Adam: 20 P. FP32: 4+4+8. ZeRO-1 divides
the optimizer states by N, ZeRO-2 the gradients too; the masters stay whole until ZeRO-3 divides
everything. The optimizer on the CPU takes away its states. Activations are 4/7 byte a parameter
for one sequence of 2048 tokens (4 GB for 7B, 8 for 13B, 40 for 70B), rounded up to whole GB, linear
in batch and length; with full checkpointing batch x seq x hidden x layers x 2. Keep 20 % of room.
"""

from __future__ import annotations

from qdeploy.core.errors import InputError
from qdeploy.core.units import GB
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Basis, Unit
from qdeploy.plan.schema import PerGpu
from qdeploy.plan.terms.optimizer import states_bytes

STRATEGIES = ("none", "ddp", "zero1", "zero2", "zero3")
NOTE = (
    "accounting article: 20 bytes a parameter in mixed precision, FP32 masters whole up to ZeRO-2, "
    "decimal GB against the card as sold; logits, buffers and CUDA are not counted. DeepSpeed "
    "shards the masters from ZeRO-1 on: compare --accounting deepspeed"
)
UNIT: Unit = "GB"

_ROOM_PERCENT = 20
_TARGET_PERCENT = 10
_REFERENCE_TOKENS = 2048


def check(job: Job, layout: Layout) -> None:
    """Raise InputError for what the rule says nothing about."""
    if job.request.peft is not None or job.pure:
        raise InputError(
            "the rule of thumb says nothing about adapters and pure BF16",
            hint="use --accounting deepspeed or torch",
        )
    if layout.offload not in ("none", "optimizer"):
        raise InputError(
            f"the rule of thumb says nothing about offload {layout.offload}",
            hint="use --accounting deepspeed",
        )


def capacity_bytes(job: Job) -> int:
    """What a total is held against: the marketing number in decimal GB."""
    return job.gpu.marketing_gb * GB


def need_bytes(parts: PerGpu) -> int:
    """What must be free for the layout to fit: the total, however little room is left."""
    return parts.need_bytes


def per_gpu(job: Job, layout: Layout, basis: Basis) -> PerGpu:
    """The rule's parts; `basis` does not matter to it."""
    mixed = job.precision.dtype != "fp32"
    every = Count(job.parameters)
    weights = layout.shard("weights", every, job)
    gradients = layout.shard("gradients", every, job)
    states = layout.shard("states", every, job)
    sizes = {
        "weights_bytes": (2 if mixed else 4) * weights,
        "master_weights_bytes": 4 * weights if mixed else 0,
        "gradients_bytes": (6 if mixed else 4) * gradients,
        "optimizer_bytes": 0
        if layout.offload == "optimizer"
        else states_bytes(job, layout, states),
        "activations_bytes": _activations_bytes(job, layout),
        "logits_bytes": 0,
        "buffers_bytes": 0,
        "framework_bytes": 0,
    }
    total = sum(sizes.values())
    return PerGpu(
        **sizes,
        total_bytes=total,
        low_bytes=total * (100 - _TARGET_PERCENT) // 100,
        high_bytes=total * (100 + _ROOM_PERCENT) // 100,
        need_bytes=total,
    )


def rough_activations_bytes(job: Job) -> int:
    """batch x seq x hidden x layers x 2 bytes."""
    return 2 * job.tokens * job.shape.hidden_size * job.shape.layers


def _activations_bytes(job: Job, layout: Layout) -> int:
    if layout.checkpointing:
        return rough_activations_bytes(job)
    exact_times_7 = 4 * job.parameters * job.tokens
    return -(-exact_times_7 // (7 * _REFERENCE_TOKENS * GB)) * GB
