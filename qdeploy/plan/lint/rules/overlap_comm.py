"""overlap_comm: speed for memory, by the rule of transformers' documentation."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import ZERO, Case, Finding
from qdeploy.plan.lint.rules.buckets import held_bytes

_LARGE = 20
"""A twentieth of the GPU is worth a warning."""


def check(case: Case) -> Iterator[Finding]:
    """What overlapping takes beside the one bucket that is needed without it."""
    if case.stage not in (1, 2) or case.zero.get("overlap_comm") is not True:
        return
    held = held_bytes(case, overlap=True)
    without = held_bytes(case, overlap=False)
    if held is None or without is None:
        return
    memory = case.job.gpu.memory_bytes
    large = held * _LARGE > memory
    yield Finding(
        severity="warning" if large else "note",
        key=f"{ZERO}.overlap_comm",
        message=f"up to 4.5 times both buckets, by transformers' rule: {format_bytes(held)} of "
        f"{format_bytes(memory)}, instead of {format_bytes(without)}",
        cost_bytes=held - without,
        advice="make the buckets smaller, or turn it off" if large else None,
    )
