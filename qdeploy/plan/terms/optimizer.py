"""Optimizer states: as the optimizer's own table says, divided by N where states are sharded.

- Adam: two FP32 moments, 8T. 8-bit forms: a byte a moment and one FP32 scale per block of 256;
  tensors of less than 4096 weights (norms, biases) keep FP32 (bitsandbytes, optim/optimizer.py,
  min_8bit_size), which is left out: they are less than a thousandth.
- torch's optimizers make states in the type of the weights that they update: 2 bytes each in
  bf16-pure and for 16-bit adapters, 4 under DeepSpeed, whose masters are FP32.
- Adafactor without momentum keeps one row and one column of FP32 for a matrix, a number for each
  weight of a vector (arXiv 1804.04235, section 4).
- Muon keeps one momentum for the matrices of the blocks, and AdamW's two for everything else.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.rank import Count


def optimizer_bytes(job: Job, layout: Layout) -> int:
    """States of the optimizer; 0 where it works on the host."""
    if layout.offload != "none":
        return 0
    if job.optimizer.factored:
        return layout.shard("states", Count(4 * _factored_numbers(job)), job)
    matrices = Count(0)
    if job.optimizer.matrix_states is not None:
        matrices = job.rank.matrices if job.peft is None else job.held_trained
    rest = job.held_trained.plus(matrices.times(-1))
    one_state = layout.shard("states", matrices, job)
    return _states(job, layout, job.optimizer.matrix_states or 0, one_state) + states_bytes(
        job, layout, layout.shard("states", rest, job)
    )


def states_bytes(job: Job, layout: Layout, count: int) -> int:
    """States for `count` parameters that are no special matrices."""
    return _states(job, layout, job.optimizer.states, count)


def step_copies_bytes(job: Job, layout: Layout) -> int:
    """What the optimizer needs beside its states while it steps."""
    if layout.offload != "none":
        return 0
    share = layout.shard("states", job.held_trained, job)
    copies = job.optimizer.step_copies * state_bits(job, layout) * share // 8
    return copies + 4 * job.optimizer.step_tensors * min(share, largest_weight(job))


def state_bits(job: Job, layout: Layout) -> int:
    """Bits of one state."""
    optimizer = job.optimizer
    if layout.deepspeed or optimizer.bits != 32 or not optimizer.follows_parameters:
        return optimizer.bits
    if job.peft is not None:
        return 8 * job.adapter_bytes
    return 16 if job.pure else 32


def largest_weight(job: Job) -> int:
    """Weights of the largest trained matrix on one GPU."""
    shape = job.shape
    if job.peft is not None and not job.request.train_embeddings:
        linears = shape.plain_linears
        widest = max(max(linear.out_features, linear.in_features) for linear in linears)
        return job.request.lora_rank * widest
    in_block = max(linear.weights for linear in shape.plain_linears) // job.rank.tensor
    return max(job.rank.embedding, job.rank.head, in_block, shape.hidden_size)


def _states(job: Job, layout: Layout, states: int, count: int) -> int:
    optimizer = job.optimizer
    scales = -(-count // optimizer.block_size) if optimizer.block_size else 0
    return states * (count * state_bits(job, layout) // 8 + 4 * scales)


def _factored_numbers(job: Job) -> int:
    """Rows and columns of all trained matrices, and all vectors."""
    if job.peft is not None:
        return job.held_trained.total
    shape, rank = job.shape, job.rank
    tables = 1 if shape.tied_embeddings else 2
    sides = sum(
        count * (linear.out_features + linear.in_features) for linear, count in rank.linears
    )
    vectors = shape.parameters - rank.linear_weights - tables * shape.vocab_size * shape.hidden_size
    return sides + tables * (shape.vocab_size + shape.hidden_size) + max(0, vectors)
