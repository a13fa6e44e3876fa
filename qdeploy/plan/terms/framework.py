"""What PyTorch and the driver take beside tensors, by the basis of the number.

- allocated: the trainer's libraries' workspaces (cuBLAS: 8 MiB before Hopper, 32 MiB on it).
- reserved: blocks that the caching allocator holds but does not use, about a fifth of what comes
  and goes in a step (reserved over allocated in the runs of DaoyuanLi2816/can-i-finetune-this:
  1.04 to 1.25 of the whole). FSDP1 gathers on another stream, whose freed blocks the computation
  cannot take at once: two fifths (fsdp_qlora 10.22 over 9.16 GiB, llama-cookbook#41 27.4 over 20.2
  and 19.4 over 15.2 GB); FSDP2 does without (torch fully_shard). Never more than the GPU has left:
  before it fails, the allocator gives back what it does not use (c10/cuda/CUDACachingAllocator).
- device: CUDA context, 0.47 to 0.92 GiB (ml-engineering, A100), and NCCL with several GPUs,
  0.5 to 1.5 GiB (the same, after the first barrier); 0.53 to 0.67 GiB more for each further kind
  of group, of tensor, pipeline, context or expert parallelism (nccl#964).
"""

from __future__ import annotations

from qdeploy.core.units import MIB
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout

CONTEXT_BYTES = 650 * MIB
NCCL_BYTES = 1024 * MIB
_NCCL_GROUP_BYTES = 620 * MIB
# What stays between blocks in use however hard the allocator tries.
_FRAGMENTS_PERCENT = 3


def slack_bytes(job: Job, layout: Layout, allocated_bytes: int, dynamic_bytes: int) -> int:
    """What the allocator holds beyond `allocated_bytes`, of which `dynamic_bytes` come and go."""
    left = job.gpu.memory_bytes - job.request.occupied_bytes - device_bytes(job) - allocated_bytes
    least = fragments_bytes(dynamic_bytes)
    return max(least, min(dynamic_bytes * layout.strategy.slack_percent // 100, left))


def fragments_bytes(dynamic_bytes: int) -> int:
    """What the allocator cannot give back."""
    return dynamic_bytes * _FRAGMENTS_PERCENT // 100


def device_bytes(job: Job) -> int:
    """CUDA context and NCCL."""
    context = job.request.context_bytes
    return (CONTEXT_BYTES if context is None else context) + _nccl_bytes(job)


def _nccl_bytes(job: Job) -> int:
    request = job.request
    if job.world == 1:
        return 0
    degrees = (
        request.data_parallel,
        request.tensor_parallel,
        request.pipeline_parallel,
        request.context_parallel,
        request.expert_parallel,
    )
    groups = sum(degree > 1 for degree in degrees)
    return NCCL_BYTES + (groups - 1) * _NCCL_GROUP_BYTES
