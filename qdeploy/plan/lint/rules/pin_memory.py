"""Pinned memory cannot be paged out, and needs a memlock limit that allows it.

DeepSpeed pins by default (zero/offload_config.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import ZERO, Case, Finding, block
from qdeploy.plan.terms.host import host_pinned_bytes


def check(case: Case) -> Iterator[Finding]:
    """What is pinned on a node, against its memory."""
    if not case.stage:
        return
    names = [name for name in ("offload_optimizer", "offload_param") if _pinned(case, name)]
    pinned = sum(_bytes(case, name) for name in names)
    if not pinned:
        return
    host = case.request.host_memory_bytes
    tight = host is not None and pinned * 2 > host
    yield Finding(
        severity="warning" if tight else "note",
        key=f"{ZERO}.{names[0]}.pin_memory",
        message=f"{format_bytes(pinned)} of a node's host are page-locked"
        + (f", more than half of its {format_bytes(host)}" if tight and host else ""),
        cost_bytes=pinned,
        advice="set pin_memory to false" if tight else "ulimit -l must allow it",
    )


def _bytes(case: Case, name: str) -> int:
    optimizer = host_pinned_bytes(case.job, replace(case.layout, offload="optimizer"))
    if name == "offload_optimizer":
        return optimizer
    if case.stage != 3:
        return 0
    return host_pinned_bytes(case.job, replace(case.layout, offload="all")) - optimizer


def _pinned(case: Case, name: str) -> bool:
    if case.device(name) == "none":
        return False
    return block(case.zero, name).get("pin_memory", True) is not False
