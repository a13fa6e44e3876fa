"""A block of transformers' models: the order of its norms, its attention and its MLP."""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers._hf_attention import attention, first_linears
from qdeploy.plan.trainers._hf_linear import linear_inputs
from qdeploy.plan.trainers._hf_mlp import mlp
from qdeploy.plan.trainers._hf_moe import moe, moe_readers
from qdeploy.plan.trainers._hf_norm import block_norms, norm_output_bytes

_BEFORE_ATTENTION, _AFTER_ATTENTION = "input_layernorm", "post_attention_layernorm"
_BEFORE_MLP, _AFTER_MLP = "pre_feedforward_layernorm", "post_feedforward_layernorm"


def has_norm_behind(run: BlockRun) -> bool:
    """Whether the outputs of attention and MLP are normalised before they join the residual."""
    return run.shape.norms_per_block == 4 or run.shape.family == "olmo2"


def parts(run: BlockRun) -> tuple[list[Saved], list[Saved]]:
    """What is kept up to the attention's output, and what is kept behind it.

    Raises InputError where transformers has no such attention for the family.
    """
    shape, stream, compute = run.shape, run.residual_bytes, run.compute_bytes
    if shape.parallel_residual:
        return _parallel(run)
    attending = _attending(run, norm_output_bytes(run, stream))
    thinking = _thinking(run, norm_output_bytes(run, stream))
    if shape.family == "olmo2":
        attending, thinking = _attending(run, stream), _thinking(run, stream)
    else:
        attending = [*block_norms(run, [_BEFORE_ATTENTION], read=stream), *attending]
    if not has_norm_behind(run):
        return attending, [*block_norms(run, [_AFTER_ATTENTION], read=stream), *thinking]
    behind = block_norms(run, [_AFTER_ATTENTION], read=compute)
    before_mlp = [] if shape.family == "olmo2" else block_norms(run, [_BEFORE_MLP], read=stream)
    last = block_norms(run, [_AFTER_MLP], read=compute)
    return attending, [*behind, *before_mlp, *thinking, *last]


def _parallel(run: BlockRun) -> tuple[list[Saved], list[Saved]]:
    """Attention and MLP side by side, behind one norm or one each."""
    read = norm_output_bytes(run, run.residual_bytes)
    names = [_BEFORE_ATTENTION, _AFTER_ATTENTION][: run.shape.norms_per_block]
    norms = block_norms(run, names, read=run.residual_bytes)
    if len(names) == 2:
        return [*norms, *_attending(run, read)], _thinking(run, read)
    shared = _read(run, [*first_linears(run), *_mlp_readers(run)], read)
    return [*norms, *shared, *_attention(run, read)], _mlp(run, read)


def _attending(run: BlockRun, read: int) -> list[Saved]:
    return [*_read(run, first_linears(run), read), *_attention(run, read)]


def _thinking(run: BlockRun, read: int) -> list[Saved]:
    return [*_read(run, _mlp_readers(run), read), *_mlp(run, read)]


def _read(run: BlockRun, names: list[str], read: int) -> list[Saved]:
    return linear_inputs(run, names, run.shape.hidden_size, produced=read)


def _attention(run: BlockRun, read: int) -> list[Saved]:
    return [*attention(run, read), *_dropout(run, "attention.dropout")]


def _mlp_readers(run: BlockRun) -> list[str]:
    if run.moe:
        return moe_readers(run)
    return [linear.name for linear in run.shape.mlp_linears[:-1]]


def _mlp(run: BlockRun, read: int) -> list[Saved]:
    inside = moe(run, read) if run.moe else mlp(run, run.shape.mlp_linears, read)
    return [*inside, *_dropout(run, "mlp.dropout")]


def _dropout(run: BlockRun, name: str) -> list[Saved]:
    """The mask of a dropout over the hidden size, one byte an element on a GPU."""
    return [Saved(name, run.shape.hidden_size, 8)] if run.shape.residual_dropout else []
