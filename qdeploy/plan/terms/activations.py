"""What is kept between the forward and the backward pass, from the trainer's list for a block.

- Without checkpointing every block keeps its tensors until its backward pass.
- Checkpointing whole blocks keeps the blocks' inputs, H numbers a token; one block's own tensors
  come back when its backward pass begins. Selective checkpointing keeps what the trainer says.
- Offloaded activations leave two blocks' worth on the GPU, one in use and one on its way.
- After the blocks: the final norm's input, in FP32 where it computes so, its normalised value for
  its weight and its output for the head's, where these are trained.
- A pipeline's first stage has as many micro-batches under way as there are stages (1F1B, arXiv
  2104.04473, section 2.2), where a step has that many.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.saved import BlockRun, Recomputed, saved_bytes

_FLASH_CAPABILITY = (8, 0)


def kept_bytes(job: Job, layout: Layout) -> int:
    """Kept by all blocks of this GPU when the loss is computed."""
    blocks = [
        (_kept_block_bytes(job, layout, moe=moe), count - _idle_blocks(job, moe=moe))
        for moe, count in job.rank.kinds
    ]
    if job.request.activation_offload:
        inside = 2 * max(size for size, _ in blocks)
    else:
        inside = _under_way(job) * sum(size * max(0, count) for size, count in blocks)
    return inside + _outside_bytes(job, layout)


def recomputed_bytes(job: Job, layout: Layout) -> int:
    """One block's own tensors, when they are back for its backward pass."""
    if not layout.checkpointing:
        return 0
    return max(_block_bytes(job, layout, "none", moe=moe) for moe, _ in job.rank.kinds)


def working_bytes(job: Job, layout: Layout) -> int:
    """Gradients of activations that one block's backward pass has at the same time."""
    runs = [block_run(job, layout, "none", moe=moe) for moe, _ in job.rank.kinds]
    most = max(job.trainer.working_bytes(run) for run in runs)
    return -(-most * job.tokens // job.rank.tensor)


def residual_bytes(job: Job, layout: Layout) -> int:
    """Bytes of a number in the residual stream.

    FP32 under autocast with FP32 weights, and where the frozen base's embeddings are FP32.
    """
    if job.upcasts_base:
        return 4
    autocast = layout.casts_weights and job.peft is None
    return 4 if autocast and not job.pure else job.compute_bytes


def block_run(job: Job, layout: Layout, recompute: Recomputed, *, moe: bool) -> BlockRun:
    """How a block of this run runs."""
    request, peft = job.request, job.peft
    residual = residual_bytes(job, layout)
    return BlockRun(
        shape=job.shape,
        moe=moe,
        compute_bytes=job.compute_bytes,
        residual_bytes=residual,
        autocast=residual != job.compute_bytes or _autocasts(job, layout),
        attention=request.attention,
        keys=request.seq_len,
        padded=job.micro_batch > 1 and not request.packing,
        trained=None if peft is None else peft.trained(job.shape),
        adapted=frozenset() if peft is None else peft.adapted(job.shape, request.lora_targets),
        lora_dropout=request.lora_dropout,
        lora_rank=request.lora_rank,
        adapter_bytes=job.compute_bytes if layout.deepspeed else job.adapter_bytes,
        sdpa_flash=job.gpu.compute_capability >= _FLASH_CAPABILITY,
        quantized_base=job.base != "16bit",
        recompute=recompute,
        compiled=request.compile,
    )


def _idle_blocks(job: Job, *, moe: bool) -> int:
    """Blocks before the first trained one: no gradient needs their activations."""
    if job.peft is None or job.stage == "last" or moe:
        return 0
    return job.peft.IDLE_BLOCKS


def _autocasts(job: Job, layout: Layout) -> bool:
    """Whether torch.autocast is on. DeepSpeed converts the model instead."""
    mixed = not job.pure and job.precision.dtype != "fp32"
    return mixed and not layout.deepspeed and job.traits.autocasts


def _kept_block_bytes(job: Job, layout: Layout, *, moe: bool) -> int:
    if not layout.checkpointing:
        return _block_bytes(job, layout, "none", moe=moe)
    if job.request.recompute == "block":
        hidden = residual_bytes(job, layout) * job.shape.hidden_size
        return -(-hidden * job.tokens // _sequence_degree(job))
    return _block_bytes(job, layout, job.request.recompute, moe=moe)


def _block_bytes(job: Job, layout: Layout, recompute: Recomputed, *, moe: bool) -> int:
    run = block_run(job, layout, recompute, moe=moe)
    tensors = job.trainer.block(run)
    return job.tokens * saved_bytes(
        run, tensors, tensor=job.rank.tensor, sequence=_sequence_degree(job)
    )


def _outside_bytes(job: Job, layout: Layout) -> int:
    if job.stage == "first":
        return 0
    # The norm computes in FP32; its normalised value and its output are kept for weights alone.
    norm = job.compute_bytes if job.shape.norm == "layer" else 4
    numbers = norm + (residual_bytes(job, layout) if job.peft is None else 0)
    numbers += job.compute_bytes if job.head_trained else 0
    return -(-numbers * job.shape.hidden_size * job.tokens // _sequence_degree(job))


def _sequence_degree(job: Job) -> int:
    return job.rank.tensor if job.request.sequence_parallel else 1


def _under_way(job: Job) -> int:
    """Micro-batches whose activations are kept at the same time."""
    if job.stage != "first":
        return 1
    return min(job.request.pipeline_parallel, job.accumulation)
