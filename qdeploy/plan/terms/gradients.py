"""Gradients, when they are there.

- DeepSpeed: eT, from ZeRO-2 on eT/N, or 4 bytes where they accumulate in FP32; ZeRO-1 then holds
  all of them, unsharded (bf16_optimizer.py, fp32_groups_gradients_flat). ZeRO-3 has its partition
  all the time (stage3.py, grad_partitions_flat_buffer), the others between the first backward
  pass and the step. The step makes an FP32 copy of this rank's share, of FP32
  gradients too: 4T/N in ZeRO-1 and 2 (one flat tensor), in ZeRO-3 one sub-group at a time,
  4 min(sub_group_size, T/N); ZeRO-1 has let go of the others' shares by then. Weights, masters,
  gradients and Adam of ZeRO-2 then make 2P + 18P/N, as DeepSpeed's estimator has it since
  deepspeed#5099; of ZeRO-3 between 16P/N and 20P/N, where it says 18P/N. With the optimizer on the
  host the gradients go there through the reduce bucket.
- PyTorch: gradients have the type of the parameters: 4T (mixed and fp32), 2T (bf16-pure), aT of
  adapters. Each step frees them. DistributedDataParallel holds them twice: its reducer's buckets
  are there all the time (gradient_as_bucket_view=False, its default).
- FSDP: the same divided by N. A pipeline accumulates them whole, in FP32. Where adapters share a
  flat parameter with frozen weights: eP, whole (litgpt#1417, llama-cookbook#37).
- Fused into the backward pass, the optimizer frees each gradient at once: the largest is left.
"""

from __future__ import annotations

from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.optimizer import largest_weight


def gradients_in_forward_bytes(job: Job, layout: Layout) -> int:
    """Gradients while a forward pass runs: accumulated ones, and buffers that are never freed."""
    if layout.offload != "none" or job.request.optimizer_in_backward:
        return 0
    held = held_gradients_bytes(job, layout)
    permanent = layout.deepspeed and layout.shards_weights
    return _buckets(job, layout) + (held if permanent or job.accumulation > 1 else 0)


def gradients_in_backward_bytes(job: Job, layout: Layout) -> int:
    """Gradients at the end of a backward pass; 0 where the optimizer works on the host."""
    if layout.offload != "none":
        return 0
    if job.request.optimizer_in_backward:
        return gradient_bytes(job, layout) * largest_weight(job)
    return _buckets(job, layout) + held_gradients_bytes(job, layout)


def gradients_in_step_bytes(job: Job, layout: Layout) -> int:
    """Gradients when the optimizer begins, without its copy; of ZeRO-1 this rank's share alone is
    left."""
    if layout.strategy.name != "zero1" or job.request.gradient_type == "fp32":
        return gradients_in_backward_bytes(job, layout)
    return gradient_bytes(job, layout) * layout.shard("states", job.held_trained, job)


def held_gradients_bytes(job: Job, layout: Layout) -> int:
    """All gradients of this GPU."""
    whole = job.request.gradient_type == "fp32" and layout.strategy.name == "zero1"
    if whole or (layout.fsdp and job.request.pipeline_parallel > 1):
        return 4 * job.held_trained.total
    if layout.fsdp and job.peft is not None and job.traits.whole_gradients:
        return job.compute_bytes * job.held.total
    return gradient_bytes(job, layout) * layout.shard("gradients", job.held_trained, job)


def step_copy_bytes(job: Job, layout: Layout) -> int:
    """DeepSpeed's FP32 copy of the gradients while the optimizer steps."""
    if not layout.deepspeed or layout.offload != "none":
        return 0
    if job.request.gradient_type == "fp32" and layout.strategy.name == "zero1":
        return 0
    share = layout.shard("states", job.held_trained, job)
    sub_group: int = zero_optimization(job, layout).get("sub_group_size", share)
    return 4 * min(sub_group, share)


def gradient_bytes(job: Job, layout: Layout) -> int:
    """Bytes of one gradient."""
    if layout.deepspeed:
        return 4 if job.request.gradient_type == "fp32" else job.compute_bytes
    if job.peft is not None:
        return job.adapter_bytes
    return 2 if job.pure else 4


def _buckets(job: Job, layout: Layout) -> int:
    """DistributedDataParallel's buckets."""
    unsharded = not layout.deepspeed and "gradients" not in layout.strategy.shards
    if not unsharded or job.request.data_parallel == 1:
        return 0
    return held_gradients_bytes(job, layout)
