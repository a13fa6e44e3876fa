"""round_robin_gradients speeds up copying gradients to the host: nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import ZERO, Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """Round robin without offload."""
    on = case.zero.get("round_robin_gradients") is True
    if on and case.stage in (1, 2) and case.device("offload_optimizer") == "none":
        yield Finding(
            severity="note",
            key=f"{ZERO}.round_robin_gradients",
            message="it helps optimizer offload only, and there is none",
            advice="take it out",
        )
