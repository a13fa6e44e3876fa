"""contiguous_gradients off: gradients are left where they were made."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import ZERO, Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """Off in stage 2."""
    if case.stage == 2 and case.zero.get("contiguous_gradients") is False:
        yield Finding(
            severity="warning",
            key=f"{ZERO}.contiguous_gradients",
            message="gradients stay scattered, which fragments the GPU's memory in the backward "
            "pass",
            advice="leave it on, the default",
        )
