"""sub_group_size: stage 3 steps one sub-group at a time, with an FP32 copy of its gradients."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.deepspeed import SIZES
from qdeploy.plan.lint.case import Case, Finding, size_path


def check(case: Case) -> Iterator[Finding]:
    """What the copy takes, and sizes beyond this GPU's share."""
    elements = case.size("sub_group_size")
    if case.stage != 3 or elements is None:
        return
    host = case.device("offload_optimizer") != "none"
    taken = 4 * min(elements, case.share)
    one_group = elements >= case.share and case.share > SIZES["sub_group_size"]
    yield Finding(
        severity="warning" if one_group else "note",
        key=size_path("sub_group_size"),
        message=f"{elements:,} elements: the step copies {format_bytes(taken)} of gradients to "
        f"FP32 at a time{' on the host' if host else ''}"
        + (", all of this GPU's share" if one_group else ""),
        cost_bytes=taken,
        advice=f"use {SIZES['sub_group_size']:,}, the default" if one_group else None,
    )
