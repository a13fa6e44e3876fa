"""What linears keep in models whose activations, weights and adapters all have one type."""

from __future__ import annotations

from collections.abc import Sequence

from qdeploy.plan.saved import BlockRun, Saved, Split


def linear_input(
    run: BlockRun, names: Sequence[str], numbers: int, *, split: Split = "sequence"
) -> list[Saved]:
    """The tensor that the linears `names` read: for the gradients of their weights, and of
    adapters that read it without dropout."""
    readers = frozenset(name for name in names if not (run.lora_dropout and name in run.adapted))
    if not readers:
        return []
    return [Saved(f"{names[0]}.input", numbers, 8 * run.compute_bytes, readers, split)]


def adapter(
    run: BlockRun, names: Sequence[str], numbers: int, *, split: Split = "sequence"
) -> list[Saved]:
    """What one adapter keeps that reads a tensor of `numbers` and serves the linears `names`:
    with dropout the mask and the dropped tensor, and r numbers between its two matrices."""
    served = frozenset(names) & run.adapted
    if not served:
        return []
    bits, name = 8 * run.compute_bytes, names[0]
    found = []
    if run.lora_dropout:
        found.append(Saved(f"{name}.lora_dropout", numbers, 8, served, split))
        found.append(Saved(f"{name}.lora_A.input", numbers, bits, served, split))
    return [*found, Saved(f"{name}.lora_B.input", run.lora_rank * len(served), bits, served)]


def rms_norm(name: str, width: int, rows: int, split: Split) -> list[Saved]:
    """What an RMSNorm in single FP32 operations keeps, on `rows` vectors of `width` a token."""
    return [
        Saved(f"{name}.input", rows * width, 32, split=split),
        Saved(f"{name}.rsqrt", rows, 32, split=split),
        Saved(f"{name}.normalised", rows * width, 32, frozenset({name}), split),
    ]
