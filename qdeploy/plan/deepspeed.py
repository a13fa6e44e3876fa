"""The `zero_optimization` block of the DeepSpeed configuration, with sizes in elements.

The buffer terms read this very block, so plan and run cannot drift apart. Defaults of DeepSpeed
that are kept are written out (deepspeed/runtime/zero/config.py): max_live_parameters,
max_reuse_distance, sub_group_size.
"""

from __future__ import annotations

from typing import Any

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout

# 100 MB of BF16: a tenth of DeepSpeed's default of 5e8, whose buckets alone take gigabytes and
# outweigh what ZeRO-2 saves below 1e9 parameters (deepspeed#1302).
_BUCKET_ELEMENTS = 50_000_000
_LIVE_ELEMENTS = 1_000_000_000
_SUB_GROUP_ELEMENTS = 1_000_000_000


def zero_optimization(job: Job, layout: Layout) -> dict[str, Any]:
    """DeepSpeed's `zero_optimization` for a ZeRO layout of `job`."""
    stage = len(layout.strategy.shards)
    block: dict[str, Any] = {"stage": stage, "overlap_comm": stage >= 2}
    if stage < 3:
        bucket = min(_BUCKET_ELEMENTS, job.trainable)
        block |= {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
        block["contiguous_gradients"] = stage == 2
    else:
        # What transformers and accelerate fill in for "auto": h^2, 0.9 h^2 and 10 h.
        hidden = job.shape.hidden_size
        block |= {
            "reduce_bucket_size": hidden * hidden,
            "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
            "stage3_param_persistence_threshold": 10 * hidden,
            "stage3_max_live_parameters": _LIVE_ELEMENTS,
            "stage3_max_reuse_distance": _LIVE_ELEMENTS,
            "sub_group_size": _SUB_GROUP_ELEMENTS,
        }
    device = "nvme" if layout.offload == "nvme" else "cpu"
    if layout.offload != "none":
        block["offload_optimizer"] = {"device": device, "pin_memory": True}
    if layout.offload in ("all", "nvme"):
        block["offload_param"] = {"device": device, "pin_memory": True}
    return block
