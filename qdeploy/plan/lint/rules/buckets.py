"""Buckets.

Default buckets of 5e8 elements take more than stage 2 saves on small models (deepspeed#1302), the
more so with overlap_comm.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.deepspeed import SIZES, bucket_bytes
from qdeploy.plan.lint.case import ZERO, Case, Finding, size_path

_NAMES = ("reduce_bucket_size", "allgather_bucket_size")
_SENSIBLE = 50_000_000
_SENSIBLE_SHARE = 32


def check(case: Case) -> Iterator[Finding]:
    """What a bucket takes, and whether it is more than the stage saves."""
    if not case.stage:
        return
    for name in _NAMES if case.stage < 3 else _NAMES[:1]:
        elements = case.size(name)
        if elements is not None:
            yield _bucket(case, name, elements)
    yield from _worth_it(case)


def held_bytes(case: Case, *, overlap: bool) -> int | None:
    """What the buckets of stage 1 or 2 take on one GPU; None where a size is malformed."""
    sizes = {name: case.size(name) for name in _NAMES}
    if None in sizes.values():
        return None
    zero = {**sizes, "overlap_comm": overlap}
    return bucket_bytes(zero, case.trained.total, case.job.compute_bytes)


def _bucket(case: Case, name: str, elements: int) -> Finding:
    trained = case.trained.total
    taken = case.job.compute_bytes * min(elements, trained)
    said = f"{elements:,} elements{'' if case.given(name) else ' (the default)'}"
    sensible = max(1, min(_SENSIBLE, trained // _SENSIBLE_SHARE))
    if elements >= trained:
        return Finding(
            severity="warning",
            key=size_path(name),
            message=f"{said}: as large as all {trained:,} trained parameters, "
            f"{format_bytes(taken)}, and nothing overlaps",
            cost_bytes=taken,
            advice=f"use {sensible:,}",
        )
    large = elements >= SIZES[name]
    return Finding(
        severity="warning" if large else "note",
        key=size_path(name),
        message=f"{said}: {format_bytes(taken)}",
        cost_bytes=taken,
        advice=f"{sensible:,} is enough" if large else None,
    )


def _worth_it(case: Case) -> Iterator[Finding]:
    taken = held_bytes(case, overlap=case.zero.get("overlap_comm") is True)
    if case.stage != 2 or case.ranks == 1 or taken is None:
        return
    trained = case.trained
    saved = case.job.compute_bytes * (trained.total - case.job.divided(trained))
    if taken > saved:
        yield Finding(
            severity="warning",
            key=f"{ZERO}.stage",
            message=f"stage 2 shards {format_bytes(saved)} of gradients away, its buckets take "
            f"{format_bytes(taken)}",
            cost_bytes=taken - saved,
            advice="use smaller buckets, or stage 1",
        )
