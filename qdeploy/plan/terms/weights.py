"""Weights that the forward and backward pass read.

- DeepSpeed: eP, with ZeRO-3 eP/N (arXiv 1910.02054, section 5).
- PyTorch mixed precision: autocast keeps a 16-bit copy of every trained weight of a matrix
  product for the length of the forward pass (torch.autocast, cache_enabled); the FP32 weights are
  counted as masters. Without masters (fp32, bf16-pure) the weights themselves.
- FSDP: shards are masters; gathered blocks are buffers.
- Frozen weights under LoRA: eP. QLoRA: NF4 in blocks of 64 with double quantization
  (arXiv 2305.14314, section 3: 0.5 + 8/64/8 + 32/(64*256)/8 bytes), everything outside the
  blocks' linear layers in FP32 (peft.prepare_model_for_kbit_training).
"""

from __future__ import annotations

from qdeploy.plan.adapters import linear_parameters
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout

_NF4_BLOCK = 64
_NF4_SCALES_BLOCK = 256


def weights_bytes(job: Job, layout: Layout) -> int:
    """Resident weights, frozen ones included; 0 where they live on the host."""
    if layout.offload in ("all", "nvme"):
        return 0
    return _trained_bytes(job, layout) + frozen_bytes(job, layout)


def frozen_bytes(job: Job, layout: Layout) -> int:
    """The frozen base of LoRA or QLoRA."""
    if job.request.peft == "qlora":
        linears = linear_parameters(job.shape)
        return nf4_bytes(linears) + 4 * (job.frozen - linears)
    return job.compute_bytes * layout.shard("weights", job.frozen, job.world)


def nf4_bytes(count: int) -> int:
    """`count` weights in NF4 with double quantization."""
    blocks = -(-count // _NF4_BLOCK)
    return -(-count // 2) + blocks + 4 * -(-blocks // _NF4_SCALES_BLOCK)


def _trained_bytes(job: Job, layout: Layout) -> int:
    if layout.strategy.engine == "deepspeed":
        return job.compute_bytes * layout.shard("weights", job.trainable, job.world)
    if job.precision.dtype == "fp32" or job.pure:
        return job.compute_bytes * layout.shard("weights", job.trainable, job.world)
    return job.compute_bytes * _cast_by_autocast(job) if layout.casts_weights else 0


def _cast_by_autocast(job: Job) -> int:
    if job.request.peft is not None:
        return job.trainable
    head = job.shape.vocab_size * job.shape.hidden_size
    return min(job.trainable, linear_parameters(job.shape) + head)
