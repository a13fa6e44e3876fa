"""Gradients of activations that are there together in the backward pass of one block.

Each function gives one place where the peak may lie, as bytes a token beyond what the block keeps:
the gradient of the residual stream, new gradients, and less what was let go before. Read off the
backward pass of the classes on meta tensors (`qdeploy.trace`), which the tests repeat.
"""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved, saved_bytes
from qdeploy.plan.trainers._hf_attention import keeps_scores, softmax_bytes
from qdeploy.plan.trainers._hf_block import has_norm_behind
from qdeploy.plan.trainers._hf_linear import linear_output_bytes
from qdeploy.plan.trainers._hf_norm import norm_output_bytes

_SHARED_FIRST = {"deepseek_v2", "deepseek_v3"}
"""Families whose backward pass runs the shared experts before the routed ones."""


def mlp_working(run: BlockRun) -> int:
    """In the product behind the activation of the MLP, or in the sum over a token's experts."""
    if run.moe:
        return _experts(run)
    shape, written = run.shape, linear_output_bytes(run, _read(run))
    stream, width = run.residual_bytes * shape.hidden_size, shape.intermediate_size
    if has_norm_behind(run):
        # The gradient has gone through the norm, whose input and normalised value are gone.
        stream += (run.compute_bytes - 8) * shape.hidden_size
    if run.quantized_base and run.autocast:  # the adapter's own gradient of its 16-bit input
        stream += run.compute_bytes * width
    if shape.gated_mlp or shape.activation in ("relu", "relu2"):
        return stream + 2 * written * width
    if shape.family == "bloom":  # its own GELU, whose backward pass is single operations
        return stream + 5 * written * width
    if shape.activation == "gelu_new":
        wide = 12 if run.autocast and written == 2 else 2 * written
        return stream + wide * width
    cast = run.compute_bytes if run.residual_bytes != run.compute_bytes else 0
    return stream + cast * shape.hidden_size + written * width


def norm_working(run: BlockRun) -> int:
    """In a norm behind the MLP: five FP32 gradients of the hidden size.

    The normalised value, kept for a trained weight, is gone by then.
    """
    if not has_norm_behind(run):
        return 0
    gone = 4 if run.trained is None else 0
    return (run.residual_bytes + 20 - gone) * run.shape.hidden_size - 4


def attention_working(run: BlockRun, behind: list[Saved]) -> int:
    """In the softmax, where scores are kept: the gradients of its output and of its input.

    What `behind` the attention was kept is gone, and what its last products kept of the scores.
    """
    if not keeps_scores(run):
        return 0
    shape, compute = run.shape, run.compute_bytes
    scores, wide = shape.heads * run.keys, softmax_bytes(run)
    gradients = 2 * wide * scores + 2 * run.residual_bytes * shape.hidden_size
    gone = saved_bytes(run, behind, tensor=1, sequence=1)
    casts = wide != compute
    if casts or shape.attention_dropout:
        gone += compute * scores
    if casts and shape.attention_dropout and shape.family != "bert":
        gone += scores  # dropout comes behind the cast, its mask is used up
    return gradients - gone - compute * shape.heads * shape.value_dim


def _experts(run: BlockRun) -> int:
    shape, chosen = run.shape, run.shape.experts_per_token
    stored = run.residual_bytes
    # A router that gives its weights in FP32 makes the weighted outputs FP32.
    weighted = 4 if shape.family in {"mixtral", *_SHARED_FIRST} else stored
    cast = stored if weighted != stored else 0
    hidden, width = chosen * shape.hidden_size, chosen * shape.expert_intermediate_size
    summed = hidden * (3 * weighted + cast)
    inside = (2 if shape.gated_mlp else 1) * width * stored - hidden * stored
    shared = run.compute_bytes * (shape.hidden_size if shape.shared_expert_gate else 0)
    if shape.family in _SHARED_FIRST:
        shared = -4 * run.compute_bytes * shape.shared_expert_intermediate_size
    return run.residual_bytes * shape.hidden_size + max(summed, inside) + shared


def _read(run: BlockRun) -> int:
    return norm_output_bytes(run, run.residual_bytes)
