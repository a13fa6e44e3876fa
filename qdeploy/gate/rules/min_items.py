"""Enough items: below a minimum nothing is claimed, neither for nor against a candidate."""

from __future__ import annotations

from pydantic import Field

from qdeploy.gate.rule import Evidence, RuleSettings
from qdeploy.gate.verdict import Outcome, RuleResult


class Settings(RuleSettings):
    """`min`: the least number of items of a task class."""

    min: int = Field(ge=1)


def judge(settings: Settings, evidence: Evidence) -> RuleResult:
    """INCONCLUSIVE when the class has fewer items than the minimum."""
    n = len(evidence.pairs)
    enough = n >= settings.min
    return RuleResult(
        rule=settings.rule,
        metric="items",
        outcome=Outcome.PASS if enough else Outcome.INCONCLUSIVE,
        blocking=settings.blocking,
        measured=n,
        limit=settings.min,
        n=n,
        needed=None if enough else settings.min - n,
        reason=f"{n} items" if enough else f"only {n} items, the policy asks for {settings.min}",
    )
