"""Features that DeepSpeed has dropped; it refuses their keys."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.toml import read_toml
from qdeploy.plan.lint.case import ZERO, Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """Removed keys of the top level and of `zero_optimization`."""
    removed, _ = read_toml("qdeploy.plan.lint", "keys")
    found = [key for key in removed["removed"]["top"] if key in case.config]
    found += [f"{ZERO}.{key}" for key in removed["removed"][ZERO] if key in case.zero]
    for key in found:
        yield Finding(
            severity="error",
            key=key,
            message="DeepSpeed 0.19 has removed this and stops",
            advice="take it out",
        )
