"""Memory of one node's host, and its NVMe.

Offloaded states (DeepSpeed docs, memory.rst): FP32 masters, states and FP32 gradients, for Adam
16 bytes a trained parameter, and the 16-bit weights too with `all`, 18; times 1.5 for buffers and
pinning. Measured: 160 to 178 GB for 7B where this says 181 (deepspeed#3606). ZeRO shards over all
GPUs, so a node holds its share; DeepSpeed's ZeRO-2 estimator forgets that.

At the start each process loads the whole model: 4 bytes a parameter and GPU of the node (FP32; 2
for the 16-bit base of LoRA), which is often the binding term (deepspeed#5290). ZeRO-3 builds it
sharded (zero.Init) and needs one layer at a time for each process.

NVMe (runtime/swap_tensor): masters, states and gradients, and the weights; the host then keeps 4
buffers of a sub-group in FP32 and 5 of 1e8 weights for each process.
"""

from __future__ import annotations

from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.buffers import largest_layer
from qdeploy.plan.terms.optimizer import states_bytes

_SWAP_BUFFERS = 4
_PARAMETER_BUFFERS = 5
_PARAMETER_BUFFER_ELEMENTS = 100_000_000


def host_bytes(job: Job, layout: Layout) -> int:
    """States of one node on the host while training."""
    if layout.offload == "none":
        return 0
    if layout.offload == "nvme":
        return _swap_bytes(job, layout)
    return _stored_bytes(job, layout) * 3 // 2


def host_init_bytes(job: Job, layout: Layout) -> int:
    """Peak of one node's host at the start."""
    if layout.strategy.engine == "deepspeed" and "weights" in layout.strategy.shards:
        layers = 4 * largest_layer(job.shape) * job.request.gpus * 3 // 2
        return layers + host_bytes(job, layout)
    element = 4 if job.request.peft is None and not job.pure else 2
    return max(element * job.parameters * job.request.gpus, host_bytes(job, layout))


def nvme_bytes(job: Job, layout: Layout) -> int:
    """NVMe space of one node."""
    return _stored_bytes(job, layout) if layout.offload == "nvme" else 0


def _stored_bytes(job: Job, layout: Layout) -> int:
    total = 8 * job.trainable + states_bytes(job, job.trainable)
    if layout.offload in ("all", "nvme"):
        total += job.compute_bytes * (job.trainable + job.frozen)
    return -(-total // job.request.nodes)


def _swap_bytes(job: Job, layout: Layout) -> int:
    share = layout.shard("states", job.trainable, job.world)
    sub_group_size: int = zero_optimization(job, layout)["sub_group_size"]
    sub_group = min(share, sub_group_size)
    weights = _PARAMETER_BUFFERS * _PARAMETER_BUFFER_ELEMENTS * job.compute_bytes
    return job.request.gpus * (_SWAP_BUFFERS * 4 * sub_group + weights)
