"""Gradients: those held between micro-batches, and DeepSpeed's FP32 copy at the step.

- DeepSpeed: eT, from ZeRO-2 on eT/N. The step makes an FP32 copy of this rank's share: 4T/N in
  ZeRO-1 and 2 (one flat tensor), in ZeRO-3 one sub-group at a time, 4 min(sub_group_size, T/N).
  Weights, masters, gradients and Adam of ZeRO-2 then make 2P + 18P/N, as DeepSpeed's estimator
  has it since deepspeed#5099; of ZeRO-3 between 16P/N and 20P/N, where it says 18P/N.
  With the optimizer on the host the gradients go there through the reduce bucket.
- PyTorch: gradients have the type of the parameters: 4T (mixed and fp32) or 2T (bf16-pure), with
  FSDP divided by N. DistributedDataParallel holds them twice, once in its reducer's buckets
  (gradient_as_bucket_view=False, its default).
"""

from __future__ import annotations

from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout


def gradients_bytes(job: Job, layout: Layout) -> int:
    """Gradients and their FP32 copy; 0 where the optimizer works on the host."""
    if layout.offload != "none":
        return 0
    return held_gradients_bytes(job, layout) + step_copy_bytes(job, layout)


def held_gradients_bytes(job: Job, layout: Layout) -> int:
    """Gradients between micro-batches."""
    count = layout.shard("gradients", job.trainable, job.world)
    if layout.strategy.engine == "deepspeed":
        return job.compute_bytes * count
    copies = 2 if job.world > 1 and "gradients" not in layout.strategy.shards else 1
    return copies * (2 if job.pure else 4) * count


def step_copy_bytes(job: Job, layout: Layout) -> int:
    """DeepSpeed's FP32 copy of the gradients while the optimizer steps."""
    if layout.strategy.engine == "torch" or layout.offload != "none":
        return 0
    share = layout.shard("states", job.trainable, job.world)
    sub_group: int = zero_optimization(job, layout).get("sub_group_size", share)
    return 4 * min(sub_group, share)
