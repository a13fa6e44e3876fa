"""Memory of one node's host, and its NVMe.

Offloaded states (DeepSpeed docs, memory.rst): FP32 masters, states and FP32 gradients, for Adam
16 bytes a trained parameter, and the 16-bit weights too with `all`, 18; times 1.5 for buffers and
pinning. Measured: 160 to 178 GB for 7B where this says 181 (deepspeed#3606). ZeRO shards over all
GPUs, so a node holds its share; DeepSpeed's ZeRO-2 estimator forgets that. FSDP's CPU offload
(torch CPUOffloadPolicy) keeps shards, gradients and states in the type that they are trained in.

Pinned, which counts against the memlock limit (pin_memory is DeepSpeed's default): the FP32
gradients that come from the GPU, 4 bytes a trained parameter; with `all` the 16-bit weights too,
and 2 more where gradients accumulate (stage3.py, _configure_offloading).

At the start each process loads the whole model: 4 bytes a parameter and GPU of the node (FP32; 2
for 16-bit weights), which is often the binding term (deepspeed#5290). ZeRO-3 builds it sharded
(zero.Init) and needs one layer at a time for each process; with FSDP one process of the node loads
it and the others wait for their shards (accelerate, cpu_ram_efficient_loading).

NVMe (runtime/swap_tensor): masters, states and gradients, and the weights; the host then keeps 4
buffers of a sub-group in FP32 and 5 of 1e8 weights for each process.
"""

from __future__ import annotations

from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.activations import kept_bytes
from qdeploy.plan.terms.buffers import largest_layer
from qdeploy.plan.terms.gradients import gradient_bytes
from qdeploy.plan.terms.optimizer import states_bytes

_SWAP_BUFFERS = 4
_PARAMETER_BUFFERS = 5
_PARAMETER_BUFFER_ELEMENTS = 100_000_000


def host_bytes(job: Job, layout: Layout) -> int:
    """States and activations of one node on the host while training."""
    activations = 0
    if job.request.activation_offload:
        whole = kept_bytes(job.without_activation_offload, layout)
        activations = job.request.gpus * whole
    if layout.offload == "none":
        return activations
    if layout.offload == "nvme":
        return activations + _swap_bytes(job, layout)
    return activations + _stored_bytes(job, layout) * 3 // 2


def host_pinned_bytes(job: Job, layout: Layout) -> int:
    """The part of `host_bytes` that is pinned."""
    if layout.offload == "none" or not layout.deepspeed:
        return 0
    each = 4
    if layout.offload in ("all", "nvme"):
        each += job.compute_bytes + (2 if job.accumulation > 1 else 0)
    return -(-each * job.trainable // job.request.nodes)


def host_init_bytes(job: Job, layout: Layout) -> int:
    """Peak of one node's host at the start."""
    if layout.deepspeed and layout.shards_weights:
        layers = 4 * largest_layer(job.shape) * job.request.gpus * 3 // 2
        return layers + host_bytes(job, layout)
    element = 4 if job.peft is None and not job.pure else 2
    copies = 1 if layout.fsdp else job.request.gpus
    return max(element * job.parameters * copies, host_bytes(job, layout))


def nvme_bytes(job: Job, layout: Layout) -> int:
    """NVMe space of one node."""
    return _stored_bytes(job, layout) if layout.offload == "nvme" else 0


def _stored_bytes(job: Job, layout: Layout) -> int:
    """What is offloaded of a node's share."""
    states = states_bytes(job, layout, job.trainable)
    if layout.fsdp:
        weights = (2 if job.pure else 4) * job.trainable + job.compute_bytes * job.frozen
        total = states + gradient_bytes(job, layout) * job.trainable + weights
    else:
        total = 8 * job.trainable + states
        if layout.offload in ("all", "nvme"):
            total += job.compute_bytes * (job.trainable + job.frozen)
    return -(-total // job.request.nodes)


def _swap_bytes(job: Job, layout: Layout) -> int:
    share = layout.shard("states", job.held_trained, job)
    sub_group_size: int = zero_optimization(job, layout)["sub_group_size"]
    sub_group = min(share, sub_group_size)
    weights = _PARAMETER_BUFFERS * _PARAMETER_BUFFER_ELEMENTS * job.compute_bytes
    return job.request.gpus * (_SWAP_BUFFERS * 4 * sub_group + weights)
