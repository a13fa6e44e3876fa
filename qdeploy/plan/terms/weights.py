"""Weights that the forward and backward pass read.

- DeepSpeed: eP, with ZeRO-3 eP/N (arXiv 1910.02054, section 5).
- PyTorch mixed precision: autocast keeps a 16-bit copy of every trained weight of a matrix
  product for the length of the forward pass (torch.autocast, cache_enabled); the FP32 weights are
  counted as masters. Without masters (fp32, bf16-pure) the weights themselves.
- FSDP: shards are masters, in bf16-pure weights; gathered blocks are buffers. SHARD_GRAD_OP keeps
  all weights gathered in 16 bits beside the FP32 shards.
- Adapters: aT. Their frozen base by how it is stored, the linears of the blocks:
  16bit e; nf4 1/2 + 4/64 (blocks of 64, one FP32 scale each); nf4-dq 1/2 + 1/64 + 4/(64 256)
  (arXiv 2305.14314, section 3); gptq-int4 1/2 + 2/128 + 1/256 (groups of 128, FP16 scale, 4-bit
  zero point); int8 1 + 2/in (a scale for each output).
  Everything outside these linears in 16 bits, or in FP32 where the trainer upcasts it
  (peft.prepare_model_for_kbit_training).
"""

from __future__ import annotations

from qdeploy.models.linear import Linear
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.rank import Count

_NF4_BLOCK = 64
_NF4_SCALES_BLOCK = 256
_GPTQ_GROUP = 128


def weights_bytes(job: Job, layout: Layout) -> int:
    """Resident weights, frozen ones included; 0 where they live on the host."""
    if layout.offload in ("all", "nvme"):
        return 0
    return _trained_bytes(job, layout) + frozen_bytes(job, layout)


def frozen_bytes(job: Job, layout: Layout) -> int:
    """The frozen base of adapters."""
    frozen = job.held_frozen
    if job.base == "16bit":
        return job.compute_bytes * layout.shard("weights", frozen, job)
    linears, tensor = job.rank.linears, job.rank.tensor
    stored = sum(count * base_bytes(job.base, linear) for linear, count in linears)
    outside = frozen.total - -(-job.rank.linear_weights // tensor)
    kept = -(-stored // tensor)
    if job.traits.quantizes_head:
        outside -= job.rank.head
        kept += base_bytes(job.base, Linear("head", job.rank.head, 1, bias=False))
    kept += (4 if job.upcasts_base else job.compute_bytes) * outside
    return layout.shard("weights", Count(kept), job)


def base_bytes(base: str, linear: Linear) -> int:
    """Bytes of one linear's weight as `base` stores it."""
    size = linear.weights
    if base == "int8":
        return size + 2 * linear.out_features
    if base == "gptq-int4":
        groups = linear.out_features * -(-linear.in_features // _GPTQ_GROUP)
        return -(-size // 2) + 2 * groups + -(-groups // 2)
    if base in ("nf4", "nf4-dq"):
        return nf4_bytes(size, double_quantized=base == "nf4-dq")
    return 2 * size


def nf4_bytes(count: int, *, double_quantized: bool = True) -> int:
    """`count` weights in NF4, with or without double quantization."""
    blocks = -(-count // _NF4_BLOCK)
    if not double_quantized:
        return -(-count // 2) + 4 * blocks
    return -(-count // 2) + blocks + 4 * -(-blocks // _NF4_SCALES_BLOCK)


def _trained_bytes(job: Job, layout: Layout) -> int:
    trained = job.held_trained
    if job.peft is not None:
        element = job.compute_bytes if layout.deepspeed else job.adapter_bytes
        return element * layout.shard("weights", trained, job)
    if layout.deepspeed or job.precision.dtype == "fp32" or job.pure:
        return job.compute_bytes * layout.shard("weights", trained, job)
    if layout.casts_weights:
        return job.compute_bytes * _cast_by_autocast(job)
    return 0 if layout.shards_weights else job.compute_bytes * trained.total


def _cast_by_autocast(job: Job) -> int:
    """Weights of matrix products: those of the blocks, and the head (the embedding if tied)."""
    shape = job.shape
    head = 0 if shape.task != "causal_lm" else shape.vocab_size * shape.hidden_size
    return min(job.held_trained.total, job.rank.matrices.total + -(-head // job.rank.tensor))
