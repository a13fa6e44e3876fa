"""What a trainer's model code cannot do, refused before anything is counted."""

from __future__ import annotations

from collections.abc import Iterable

from qdeploy.core.errors import InputError
from qdeploy.plan.saved import BlockRun, Recomputed


def refuse(trainer: str, run: BlockRun, missing: Iterable[tuple[bool, str]]) -> None:
    """Raises InputError for the first of `missing` (whether it is asked for, what it is)."""
    for asked, what in missing:
        if asked:
            raise InputError(
                f"trainer {trainer} cannot train {run.shape.name} like this: it has no {what}",
                hint="use --trainer hf",
            )


def only_full_training(trainer: str, run: BlockRun, recomputes: tuple[Recomputed, ...]) -> None:
    """Raises InputError for adapters, frozen weights, and recomputation not in `recomputes`."""
    if run.adapted or run.trained is not None or run.quantized_base:
        raise InputError(
            f"trainer {trainer} trains all weights, found adapters on a frozen model",
            hint="use --trainer hf, or leave --peft out",
        )
    if run.recompute not in ("none", *recomputes):
        raise InputError(
            f"trainer {trainer} cannot recompute {run.recompute}",
            hint=f"choose {' or '.join(('block', *recomputes))}",
        )
