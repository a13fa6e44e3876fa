"""What attention in transformers' models keeps behind its first linears."""

from __future__ import annotations

from qdeploy.core.errors import InputError
from qdeploy.plan.request import Attention
from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers._hf_linear import linear_inputs, linear_output_bytes
from qdeploy.plan.trainers._hf_norm import norm

_EAGER_ONLY = {"bloom", "mpt"}
"""Families whose attention transformers has in single operations only."""
_SOFTMAX_IN_COMPUTE_TYPE = {"gpt2", "bert", "falcon"}
"""Families whose eager attention takes its softmax in 16 bits unless autocast is on."""


def first_linears(run: BlockRun) -> list[str]:
    """Linears of the attention that read the norm before it."""
    names = [linear.name for linear in run.shape.attention_linears[:-1]]
    return [name for name in names if name not in ("q_b_proj", "kv_b_proj")]


def attention(run: BlockRun, read: int) -> list[Saved]:
    """Attention behind a norm that writes numbers of `read` bytes.

    Raises InputError where transformers has no flash attention for the family.
    """
    shape = run.shape
    written = linear_output_bytes(run, read)
    found = _between(run, written)
    if _kind(run) == "eager":
        found += _eager(run)
        kept = False
    elif run.attention == "sdpa" and _without_kernel(run):
        found += _sdpa_operations(run)
        kept = False
    else:
        found += _fused(run, written)
        # Padded rows are put back, and padded values cut off, by a copy.
        kept = run.attention != "flash" or not (run.padded or _pads_values(run))
    features, out = shape.heads * shape.value_dim, shape.attention_linears[-1].name
    return found + linear_inputs(
        run, [out], features, produced=run.compute_bytes, split="tensor", kept=kept
    )


def keeps_scores(run: BlockRun) -> bool:
    """Whether a matrix of scores, heads x keys a token, is kept."""
    return _kind(run) == "eager" or (run.attention == "sdpa" and _without_kernel(run))


def softmax_bytes(run: BlockRun) -> int:
    """Bytes of a number of the softmax over scores that are kept."""
    in_compute_type = run.shape.family in _SOFTMAX_IN_COMPUTE_TYPE and not run.autocast
    return run.compute_bytes if in_compute_type and _kind(run) == "eager" else 4


def _kind(run: BlockRun) -> Attention:
    """The implementation that runs: `sdpa` stands for what transformers takes unless told."""
    family = run.shape.family
    if run.attention == "flash" and family in _EAGER_ONLY:
        raise InputError(
            f"transformers has no flash attention for {family}",
            hint="use --attention eager",
        )
    if family in _EAGER_ONLY or (run.attention == "sdpa" and run.shape.attention_softcap):
        return "eager"
    return run.attention


def _between(run: BlockRun, written: int) -> list[Saved]:
    """Norms on queries and keys, and the second linears of latent attention."""
    shape = run.shape
    if shape.kv_lora_rank:
        rank, found = shape.q_lora_rank, []
        if rank:
            found += norm(run, "q_a_layernorm", rank, read=written)
            found += linear_inputs(run, ["q_b_proj"], rank, produced=written)
        found += norm(run, "kv_a_layernorm", shape.kv_lora_rank, read=written)
        return found + linear_inputs(run, ["kv_b_proj"], shape.kv_lora_rank, produced=written)
    if not (shape.qk_norm or shape.qk_norm_whole):
        return []
    found = []
    for name, heads in (("q_norm", shape.heads), ("k_norm", shape.kv_heads)):
        width, rows = (shape.head_dim, heads) if shape.qk_norm else (heads * shape.head_dim, 1)
        found += norm(run, name, width, read=written, rows=rows, split="tensor")
    return found


def _fused(run: BlockRun, written: int) -> list[Saved]:
    """A kernel that recomputes the scores: flash, or the one that SDPA takes with a mask."""
    shape, bits = run.shape, 8 * run.compute_bytes
    masked = run.attention == "sdpa" and _has_mask(run)
    found = _inputs(run, repeated=masked, values=_values(run, written, masked=masked))
    width = shape.head_dim if run.attention == "flash" else shape.value_dim
    found.append(Saved("attention.out", shape.heads * width, bits, split="tensor"))
    found.append(Saved("attention.log_sum", shape.heads, 32, split="tensor"))
    if masked:
        # SDPA turns the boolean mask into a bias of the queries' type, in each block anew.
        found.append(Saved("attention.bias", run.keys, bits))
    elif run.padded and run.attention == "flash":
        found.append(Saved("attention.rows", 1, 64))
    return found


def _values(run: BlockRun, written: int, *, masked: bool) -> int:
    """Numbers a token of the storage in which the values lie.

    Values that are a part of a fused linear's output keep all of it, unless they are copied.
    """
    shape = run.shape
    kv_heads = shape.heads if masked or _copies_all_heads(run) else shape.kv_heads
    own = kv_heads * shape.value_dim
    if _pads_values(run):
        return kv_heads * shape.head_dim
    repeats = masked and shape.heads != shape.kv_heads
    copied = repeats or written != run.compute_bytes or (run.padded and not masked)
    if copied:
        return own
    if shape.kv_lora_rank:
        return shape.heads * (shape.head_dim - shape.qk_rope_head_dim + shape.value_dim)
    rotated = not (shape.learned_positions or shape.alibi)
    if shape.fused_qkv and rotated and shape.family != "falcon":
        return (shape.heads + shape.kv_heads) * shape.head_dim + own
    return own


def _pads_values(run: BlockRun) -> bool:
    return run.attention == "flash" and run.shape.value_dim != run.shape.head_dim


def _copies_all_heads(run: BlockRun) -> bool:
    """Falcon with groups of queries gives every head its own copy of keys and values."""
    return run.shape.family == "falcon" and run.shape.kv_heads > 1


def _has_mask(run: BlockRun) -> bool:
    """Whether SDPA gets a mask: for padding, and always in Falcon."""
    return run.padded or run.shape.family == "falcon"


def _without_kernel(run: BlockRun) -> bool:
    """Whether no fused kernel of SDPA takes grouped queries as transformers hands them over.

    With a mask transformers repeats keys and values, except for Falcon's single key-value head;
    without, it leaves the groups to SDPA, of whose kernels only flash knows them
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
    """
    shape = run.shape
    if shape.family == "falcon":
        return shape.kv_heads == 1 < shape.heads
    grouped = shape.kv_heads < shape.heads and not run.padded and shape.head_dim <= 256
    return grouped and not (run.sdpa_flash and run.compute_bytes == 2)


def _sdpa_operations(run: BlockRun) -> list[Saved]:
    """SDPA in single operations: all in FP32, keys and values for all heads, and all scores."""
    shape = run.shape
    heads = shape.heads * (2 * shape.head_dim + shape.value_dim)
    return [
        Saved("attention.qkv", heads, 32, split="tensor"),
        Saved("attention.softmax", shape.heads * run.keys, 32, split="tensor"),
    ]


def _inputs(run: BlockRun, *, repeated: bool, values: int) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    kv_heads = shape.heads if repeated or _copies_all_heads(run) else shape.kv_heads
    return [
        Saved("attention.q", shape.heads * shape.head_dim, bits, split="tensor"),
        Saved("attention.k", kv_heads * shape.head_dim, bits, split="tensor"),
        Saved("attention.v", values, bits, split="tensor"),
    ]


def _eager(run: BlockRun) -> list[Saved]:
    """Scores of all keys: softmax, its cast to the compute type, dropout's mask and output."""
    shape, compute = run.shape, run.compute_bytes
    scores = shape.heads * run.keys
    found = _inputs(run, repeated=True, values=shape.heads * shape.value_dim)
    wide = softmax_bytes(run)
    sizes = {"attention.softmax": wide}
    if shape.attention_softcap:
        sizes["attention.softcap"] = compute
    if shape.attention_dropout:
        sizes["attention.dropout_mask"] = 1
    if shape.attention_dropout or wide != compute:
        sizes["attention.probabilities"] = compute
    return found + [Saved(name, scores, 8 * size, split="tensor") for name, size in sizes.items()]
