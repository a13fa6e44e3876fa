"""FP32 weights that the optimizer updates.

- DeepSpeed: 4T/N in every ZeRO stage, FP32 training included (single_partition_of_fp32_groups in
  stage_1_and_2.py, fp32_partitioned_groups_flat in stage3.py).
- PyTorch mixed precision: the FP32 parameters, 4T; FSDP 4T/N. None for fp32, bf16-pure and
  adapters, whose weights are updated in place.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout


def master_weights_bytes(job: Job, layout: Layout) -> int:
    """FP32 masters; 0 where the optimizer works on the host."""
    if layout.offload != "none":
        return 0
    in_place = job.precision.dtype == "fp32" or job.pure or job.peft is not None
    if not layout.deepspeed and in_place:
        return 0
    return 4 * layout.shard("states", job.held_trained, job)
