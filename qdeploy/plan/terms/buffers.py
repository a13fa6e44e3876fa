"""Communication buffers, gathered weights, dequantization. (DDP's buckets: see `gradients`.)

- zero1 and zero2: the buckets of the DeepSpeed JSON, see `deepspeed.bucket_bytes`.
- zero3: the reduce bucket, which is never freed; gathered weights up to
  stage3_max_live_parameters, and the prefetch bucket; the whole gradient of the largest layer
  (usually the head) before it is reduced, and its copy laid out by rank
  (runtime/comm/coalesced_collectives.py, reduce_scatter_coalesced). DeepSpeed's estimator counts
  one layer instead, far too little (deepspeed#4527).
- fsdp: two gathered blocks (one computed, one prefetched), the embedding and head, which the root
  keeps gathered, and in the backward pass the unsharded gradient of the largest of these, in the
  compute type and again in the type that is reduced, FP32 under mixed precision (torch
  fully_shard, foreach_reduce). With a pipeline all blocks stay gathered from one micro-batch to
  the next.
- a quantized base: one dequantized layer and its transpose.
"""

from __future__ import annotations

from qdeploy.models.shape import ModelShape
from qdeploy.plan.deepspeed import bucket_bytes, zero_optimization
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.weights import base_bytes


def buffers_in_forward_bytes(job: Job, layout: Layout) -> int:
    """Buffers while the forward pass ends."""
    gathered = 0
    if layout.fsdp and layout.shards_weights:
        gathered = _fsdp_gathered_bytes(job)
    elif layout.shards_weights:
        gathered = _zero3_gathered_bytes(job, layout)
    return _dequantized_bytes(job) + gathered + permanent_buffers_bytes(job, layout)


def buffers_in_backward_bytes(job: Job, layout: Layout) -> int:
    """Buffers while the backward pass runs."""
    return buffers_in_forward_bytes(job, layout) + _gradient_bytes(job, layout)


def permanent_buffers_bytes(job: Job, layout: Layout) -> int:
    """Buffers that are there all the time: ZeRO-3's reduce bucket."""
    if not (layout.deepspeed and layout.shards_weights):
        return 0
    elements: int = zero_optimization(job, layout)["reduce_bucket_size"]
    return min(elements, job.held_trained.total) * job.compute_bytes


def largest_layer(shape: ModelShape) -> int:
    """Parameters of the largest single layer: the embedding, the head or a linear."""
    linears = [linear.weights for linear in shape.plain_linears]
    experts = [shape.experts * linear.weights for linear in shape.expert_linears]
    return max(shape.vocab_size * shape.hidden_size, *linears, *experts)


def _dequantized_bytes(job: Job) -> int:
    if job.base == "16bit":
        return 0
    sizes = [linear.weights for linear, _ in job.rank.linears]
    if job.traits.quantizes_head:
        sizes.append(job.rank.head)
    return 2 * job.compute_bytes * max(sizes)


def _gradient_bytes(job: Job, layout: Layout) -> int:
    """Gradients on their way to the ranks that own them."""
    if layout.fsdp:
        return _fsdp_gradient_bytes(job)
    if not layout.deepspeed:
        return 0
    if layout.shards_weights:
        trained = job.peft is None
        layer = job.compute_bytes * largest_layer(job.shape) // job.rank.tensor
        return 2 * layer if trained else 0
    zero = zero_optimization(job, layout)
    return bucket_bytes(zero, job.held_trained.total, job.compute_bytes)


def _zero3_gathered_bytes(job: Job, layout: Layout) -> int:
    zero = zero_optimization(job, layout)
    largest = largest_layer(job.shape)
    live = max(largest, zero["stage3_max_live_parameters"])
    gathered = min(job.held.total, live + zero["stage3_prefetch_bucket_size"])
    return job.compute_bytes * int(gathered)


def _fsdp_gathered_bytes(job: Job) -> int:
    block, root = _fsdp_units(job)
    element = job.compute_bytes
    if job.request.pipeline_parallel > 1:
        return element * job.held.total
    if job.base == "16bit":
        return element * (2 * block + root)
    blocks, inside = sum(job.rank.blocks), job.rank.linear_weights
    stored = sum(count * base_bytes(job.base, linear) for linear, count in job.rank.linears)
    return 2 * (stored // blocks + element * (block - inside // blocks)) + element * root


def _fsdp_gradient_bytes(job: Job) -> int:
    """A gradient as the backward pass made it, and its copy in the type that is reduced."""
    if job.peft is not None or job.request.pipeline_parallel > 1:
        return 0
    return (4 if job.pure else job.compute_bytes + 4) * max(_fsdp_units(job))


def _fsdp_units(job: Job) -> tuple[int, int]:
    """Parameters of the largest block, and of everything outside the blocks."""
    return job.rank.largest_block, job.held.total - job.rank.inside.total
