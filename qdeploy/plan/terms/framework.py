"""What PyTorch and the driver take beside tensors, by the basis of the number.

- allocated: cuBLAS workspace, 32 MiB (PyTorch's default on Hopper; 8 MiB before).
- reserved: blocks that the caching allocator holds but does not use, about a fifth of what comes
  and goes in a step (reserved over allocated in the runs of DaoyuanLi2816/can-i-finetune-this
  and AnswerDotAI/fsdp_qlora: 1.04 to 1.25 of the whole).
- device: CUDA context, 0.47 to 0.92 GiB (ml-engineering, A100), and NCCL with several GPUs,
  0.5 to 1.5 GiB (the same, after the first barrier).
"""

from __future__ import annotations

from qdeploy.core.units import MIB
from qdeploy.plan.job import Job
from qdeploy.plan.request import Basis

_WORKSPACE_BYTES = 32 * MIB
_CONTEXT_BYTES = 650 * MIB
_NCCL_BYTES = 1024 * MIB


def framework_bytes(job: Job, dynamic_bytes: int, basis: Basis) -> int:
    """Overhead on `basis`; `dynamic_bytes` is what comes and goes in a step."""
    total = _WORKSPACE_BYTES
    if basis != "allocated":
        total += dynamic_bytes // 5
    if basis == "device":
        total += _CONTEXT_BYTES + (_NCCL_BYTES if job.world > 1 else 0)
    return total
