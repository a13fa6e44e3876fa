"""What norms of transformers' models keep."""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved, Split

_WEIGHT_IN_FP32 = {"gemma", "gemma2", "gemma3_text", "olmo2"}
"""Families whose RMSNorm multiplies by its weight in FP32."""


def norm_output_bytes(run: BlockRun, read: int) -> int:
    """Bytes of a number that a norm over numbers of `read` bytes writes."""
    return 4 if _is_kernel(run) and run.autocast else read


def block_norms(run: BlockRun, names: list[str], *, read: int) -> list[Saved]:
    """Norms over the hidden size that all read one tensor, with numbers of `read` bytes."""
    found: list[Saved] = []
    for name in names:
        kept = norm(run, name, run.shape.hidden_size, read=read)
        casts = norm_output_bytes(run, read) != read
        # LayerNorm keeps the very tensor that it reads, unless autocast hands it an FP32 copy.
        shares = bool(found) and _is_kernel(run) and not casts
        found += kept[1:] if shares else kept
    return found


def norm(
    run: BlockRun, name: str, width: int, *, read: int, rows: int = 1, split: Split = "sequence"
) -> list[Saved]:
    """`rows` norms of `width` a token, whose input has numbers of `read` bytes.

    RMSNorm is written in single operations: it keeps its input in FP32, the reciprocal of its
    root mean square and, for the gradient of its weight, the normalised value. LayerNorm is one
    kernel, which autocast runs in FP32: it keeps its input and two FP32 statistics. Cohere's
    LayerNorm is single operations again and takes the mean off twice.
    """
    numbers = rows * width
    if _is_kernel(run):
        return [
            Saved(f"{name}.input", numbers, 8 * norm_output_bytes(run, read), split=split),
            Saved(f"{name}.statistics", 2 * rows, 32, split=split),
        ]
    centred = run.shape.norm == "layer"
    weighted = 4 if centred or run.shape.family in _WEIGHT_IN_FP32 else read
    return [
        Saved(f"{name}.input", (2 if centred else 1) * numbers, 32, split=split),
        Saved(f"{name}.rsqrt", rows, 32, split=split),
        Saved(f"{name}.normalised", numbers, 8 * weighted, frozenset({name}), split),
    ]


def _is_kernel(run: BlockRun) -> bool:
    return run.shape.norm == "layer" and run.shape.family != "cohere"
