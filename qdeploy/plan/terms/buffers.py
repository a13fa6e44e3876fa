"""Communication buffers, gathered weights, dequantization. (DDP's buckets: see `gradients`.)

- zero1: one flat reduce bucket. zero2: the gradient bucket, twice with overlap_comm
  (stage_1_and_2.py, ipg_buffer).
- zero3: the reduce bucket; gathered weights up to stage3_max_live_parameters, and the prefetch
  bucket; the whole gradient of the largest layer (usually the head) before it is reduced.
  DeepSpeed's estimator counts one layer instead, far too little (deepspeed#4527).
- fsdp: two gathered blocks (one computed, one prefetched), the embedding and head, which the root
  keeps gathered, and the unsharded gradients of the largest of these (torch fully_shard; reduced
  in FP32 under mixed precision).
- qlora: one dequantized layer and its transpose.
"""

from __future__ import annotations

from qdeploy.models.shape import ModelShape
from qdeploy.plan.adapters import block_linears
from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout


def buffers_bytes(job: Job, layout: Layout) -> int:
    """All buffers of the layout."""
    dequantized = 0
    if job.request.peft == "qlora":
        largest = max(out * into for out, into in block_linears(job.shape))
        dequantized = 2 * job.compute_bytes * largest
    return dequantized + _communication_bytes(job, layout)


def largest_layer(shape: ModelShape) -> int:
    """Parameters of the largest single layer: the embedding, the head or a linear."""
    linears = [out * into for out, into in block_linears(shape)]
    return max(shape.vocab_size * shape.hidden_size, *linears)


def _communication_bytes(job: Job, layout: Layout) -> int:
    if layout.strategy.engine == "torch":
        return _fsdp_bytes(job) if "weights" in layout.strategy.shards else 0
    zero = zero_optimization(job, layout)
    bucket: int = min(zero["reduce_bucket_size"], job.trainable) * job.compute_bytes
    if "weights" in layout.strategy.shards:
        return bucket + _zero3_gathered_bytes(job, zero)
    return bucket * (2 if zero["overlap_comm"] else 1)


def _zero3_gathered_bytes(job: Job, zero: dict[str, int]) -> int:
    largest = largest_layer(job.shape)
    live = max(largest, zero["stage3_max_live_parameters"])
    gathered = min(job.parameters, live + zero["stage3_prefetch_bucket_size"])
    gradient = largest if job.request.peft is None else 0
    return job.compute_bytes * (gathered + gradient)


def _fsdp_bytes(job: Job) -> int:
    block = job.shape.block_parameters
    root = job.parameters - job.shape.layers * block
    gathered = job.compute_bytes * (2 * block + root)
    trained = max(block, root) if job.request.peft is None else 0
    return gathered + (2 if job.pure else 4) * trained
