"""Optimizer states: as the optimizer's own table says, divided by N where states are sharded.

Adam: two FP32 moments, 8T. 8-bit forms: a byte a moment and one FP32 scale per block of 256
(bitsandbytes). In bf16-pure, 32-bit states follow the parameters' type: 2 bytes each.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout


def optimizer_bytes(job: Job, layout: Layout) -> int:
    """States of the optimizer; 0 where it works on the host."""
    if layout.offload != "none":
        return 0
    return states_bytes(job, layout.shard("states", job.trainable, job.world))


def states_bytes(job: Job, count: int) -> int:
    """States for `count` parameters."""
    optimizer = job.optimizer
    bits = 16 if job.pure and optimizer.bits == 32 else optimizer.bits
    scales = -(-count // optimizer.block_size) if optimizer.block_size else 0
    return optimizer.states * (count * bits // 8 + 4 * scales)
