"""Not worse than the baseline by more than a margin.

The interval of the paired difference is recomputed from the items' scores at the policy's alpha, so
a policy can be changed and replayed without a model. With d the difference turned so that more is
better, the candidate PASSes when the whole interval lies above -margin, FAILs when it lies wholly
below, and is INCONCLUSIVE otherwise. Each end of the interval is one-sided at alpha: a candidate
that is worse by more than the margin passes with probability alpha at most, and one that is not
fails with probability alpha at most.
"""

from __future__ import annotations

import math

from pydantic import Field

from qdeploy.gate.rule import Evidence, RuleSettings
from qdeploy.gate.verdict import Outcome, RuleResult


class Settings(RuleSettings):
    """`metric` may be worse than the baseline's by less than `margin`, in the metric's unit."""

    metric: str
    margin: float = Field(gt=0)


def judge(settings: Settings, evidence: Evidence) -> RuleResult:
    """The interval against the margin. Raises NotMeasured when the metric is absent."""
    from qdeploy.evals.stats import paired_interval

    pairs = evidence.metric(settings.metric)
    sign = 1.0 if pairs.direction == "higher" else -1.0
    gains = [sign * difference for difference in pairs.differences]
    gain, low, high = paired_interval(
        gains, pairs.clusters, 1 - 2 * evidence.alpha, bound=pairs.bound
    )
    n = len(gains)
    outcome, needed = Outcome.INCONCLUSIVE, None
    if n < evidence.min_items:
        needed = evidence.min_items - n
        why = f"only {n} items, the policy asks for {evidence.min_items}"
    elif low > -settings.margin:
        outcome, why = Outcome.PASS, "within the margin"
    elif high < -settings.margin:
        outcome, why = Outcome.FAIL, "worse by more than the margin"
    else:
        needed = _more_items(gains, gain, low, settings.margin)
        why = (
            f"about {needed} more items are needed"
            if needed is not None
            else "the difference is at the margin: more items would not show it to be good enough"
        )
    ends = (low, high) if sign > 0 else (-high, -low)
    known = all(math.isfinite(end) for end in ends)
    shown = f"{ends[0]:+.3g} to {ends[1]:+.3g}" if known else "unknown"
    return RuleResult(
        rule=settings.rule,
        metric=settings.metric,
        outcome=outcome,
        blocking=settings.blocking,
        measured=sign * gain,
        low=ends[0] if known else None,
        high=ends[1] if known else None,
        limit=-sign * settings.margin,
        n=n,
        needed=needed,
        reason=f"{settings.metric} {sign * gain:+.3g} ({shown}) against a margin of "
        f"{settings.margin:g}: {why}",
    )


def _more_items(gains: list[float], gain: float, low: float, margin: float) -> int | None:
    from qdeploy.evals.stats import items_needed

    total = items_needed(len(gains), gain, low, margin, any_change=any(gains))
    return None if total is None else max(1, total - len(gains))
