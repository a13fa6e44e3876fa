"""What autograd saves in the forward pass, counted from the blocks of transformers' models.

Per token and block, in bytes (each line is a tensor that the backward pass reads; r bytes of a
number in the residual stream, e in the matrix products):
- norm: RMSNorm keeps its input in FP32 (4H), the reciprocal (4) and the normalised value before
  the weight (rH; Gemma, which multiplies in FP32, 4H); LayerNorm keeps its input (rH) and two
  statistics (8). The norm's output is the input of linear layers, eH if it comes before some;
  under autocast each linear that reads it casts it for itself: eH for each of q, k, v, gate, up.
- attention with a flash kernel: q, k, v after rotation, the output, one FP32 log-sum a head:
  2eQ + 2eK + 4A. Norms of q and k are norms over Q and K whose output is not kept.
- attention of `sdpa` with padded batches repeats k and v to all heads: 4eQ + 4A.
- eager attention keeps, beside the repeated k and v, the probabilities: in FP32 and cast to e,
  (4+e)AS; GPT-2 computes them in e: eAS.
- MLP with a gate: gate, up, their activation and product: 4eF. GPT-2's tanh GELU: 5eF.
The counts agree with torch.autograd.graph.saved_tensors_hooks over the model classes themselves,
see tests. Korthikanti et al. (arXiv 2205.05198) count 34sbh + 5as^2b for another block.
Left out: dropout masks. Frozen bases (LoRA) save somewhat less.
"""

from __future__ import annotations

from qdeploy.models.family import family_of
from qdeploy.models.shape import ModelShape
from qdeploy.plan.adapters import block_linears
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.request import Attention


def activations_bytes(job: Job, layout: Layout, logits_bytes: int) -> int:
    """What activations add to the peak beside `logits_bytes`.

    Without checkpointing all blocks' activations are there when the loss is computed. With it
    only the blocks' inputs are; one block's activations come back after the logits are gone.
    """
    block = block_bytes_per_token(job, layout) * job.tokens
    if not layout.checkpointing:
        return job.shape.layers * block
    inputs = residual_bytes(job, layout) * job.shape.hidden_size * job.tokens
    return job.shape.layers * inputs + max(0, block - logits_bytes)


def block_bytes_per_token(job: Job, layout: Layout) -> int:
    """Saved activations of one block for one token."""
    attention = job.request.attention
    return saved_bytes_per_token(
        job.shape,
        compute=job.compute_bytes,
        residual=residual_bytes(job, layout),
        attention=attention,
        seq_len=job.request.seq_len,
        repeats_kv=attention == "sdpa" and job.request.micro_batch > 1,
    )


def residual_bytes(job: Job, layout: Layout) -> int:
    """Bytes of a number in the residual stream.

    FP32 under autocast with FP32 weights, and with QLoRA, whose embeddings are FP32.
    """
    if job.request.peft == "qlora":
        return 4
    autocast = layout.casts_weights and job.request.peft is None
    return 4 if autocast and not job.pure else job.compute_bytes


def saved_bytes_per_token(
    shape: ModelShape,
    *,
    compute: int,
    residual: int,
    attention: Attention,
    seq_len: int,
    repeats_kv: bool = False,
) -> int:
    """Saved activations of one block of `shape` for one token."""
    return (
        _norms(shape, compute, residual)
        + _attention(shape, compute, attention, seq_len, repeats_kv=repeats_kv)
        + (4 if shape.gated_mlp else 5) * compute * shape.intermediate_size
    )


def _norms(shape: ModelShape, compute: int, residual: int) -> int:
    hidden = shape.hidden_size
    before_linears = _linear_inputs(shape, cast=compute != residual) * compute * hidden
    if shape.norm_bias:
        return shape.norms_per_block * (residual * hidden + 8) + before_linears
    multiplies_in_fp32 = family_of({"model_type": shape.family}).norm_offset != 0
    block_norm = 4 * hidden + (4 if multiplies_in_fp32 else residual) * hidden + 4
    saved = shape.norms_per_block * block_norm + before_linears
    if shape.qk_norm:
        heads = shape.heads + shape.kv_heads
        saved += heads * (shape.head_dim * (4 + (4 if multiplies_in_fp32 else compute)) + 4)
    return saved


def _linear_inputs(shape: ModelShape, *, cast: bool) -> int:
    """Tensors of the hidden size that the linears after the two norms keep as their inputs."""
    if not cast:
        return 2
    # Two linears read something else: the output projection and the one out of the MLP.
    return len(block_linears(shape)) - 2


def _attention(
    shape: ModelShape, compute: int, kind: Attention, seq_len: int, *, repeats_kv: bool
) -> int:
    q_features = shape.heads * shape.head_dim
    kv_features = shape.kv_heads * shape.head_dim
    repeated = kind == "eager" or repeats_kv
    saved = compute * (2 * q_features + 2 * (q_features if repeated else kv_features))
    if kind != "eager":
        return saved + 4 * shape.heads
    if shape.norm_bias or compute == 4:
        return saved + compute * shape.heads * seq_len
    return saved + (4 + compute) * shape.heads * seq_len
