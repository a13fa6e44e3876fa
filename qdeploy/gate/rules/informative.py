"""A task that the baseline cannot do says nothing about a candidate.

Two models that both guess look equal; that must not pass as "no worse".
"""

from __future__ import annotations

from qdeploy.gate.rule import Evidence, RuleSettings
from qdeploy.gate.verdict import Outcome, RuleResult


class Settings(RuleSettings):
    """No keys of its own."""


def judge(settings: Settings, evidence: Evidence) -> RuleResult:
    """INCONCLUSIVE when the evaluation found the baseline at the floor of the task class."""
    result = evidence.result
    reason = f"the baseline reaches {result.baseline_primary:.3g} on {result.primary}"
    if not result.informative:
        reason = f"uninformative: {result.reason or 'the baseline cannot do this task'}"
    return RuleResult(
        rule=settings.rule,
        metric=result.primary,
        outcome=Outcome.PASS if result.informative else Outcome.INCONCLUSIVE,
        blocking=settings.blocking,
        measured=result.baseline_primary,
        limit=result.floor,
        n=len(evidence.pairs),
        reason=reason,
    )
