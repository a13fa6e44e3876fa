"""Screens: a limit that only a broken file crosses.

They look at teacher-forced divergence from the baseline, which says how much the candidate differs
and not whether it is worse; near the baseline it does not rank candidates (arXiv 2606.19558). So a
screen rejects what is far off and never stands for a pass: a class needs a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Literal

from pydantic import model_validator

from qdeploy.evals.results import ScreenResult
from qdeploy.gate.rule import Evidence, NotMeasured, RuleSettings
from qdeploy.gate.verdict import Outcome, RuleResult

Metric = Literal[
    "kl_mean", "kl_p99", "top1_agreement", "block_error", "block_outlier", "layer_error"
]


class Settings(RuleSettings):
    """A limit on one value of the screen: `max`, or `min` where more is better."""

    metric: Metric
    max: float | None = None
    min: float | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Settings:
        if (self.max is None) == (self.min is None):
            raise ValueError("a screen needs one limit: max or min")
        return self


def _block_error(screen: ScreenResult) -> tuple[float, str]:
    errors = screen.block_errors
    worst = errors.index(max(errors))
    return errors[worst], f" in block {worst} of {len(errors)}"


def _block_outlier(screen: ScreenResult) -> tuple[float, str]:
    """The largest block error over the median one."""
    value, where = _block_error(screen)
    middle = median(screen.block_errors)
    if middle == 0:
        # All but a few blocks are exact: any error at all stands out without bound.
        return (0.0, where) if value == 0 else (value / 1e-12, where)
    return value / middle, where


def _layer_error(screen: ScreenResult) -> tuple[float, str]:
    worst = max(screen.layer_errors, key=screen.layer_errors.__getitem__)
    return screen.layer_errors[worst], f" in block {worst.replace('.', ' layer ', 1)}"


_VALUES: dict[Metric, Callable[[ScreenResult], tuple[float, str]]] = {
    "kl_mean": lambda screen: (screen.kl_mean, " nats per token"),
    "kl_p99": lambda screen: (screen.kl_p99, " nats"),
    "top1_agreement": lambda screen: (screen.top1_agreement, ""),
    "block_error": _block_error,
    "block_outlier": _block_outlier,
    "layer_error": _layer_error,
}


_OF_TOKENS = frozenset({"kl_mean", "kl_p99", "top1_agreement"})


def judge(settings: Settings, evidence: Evidence) -> RuleResult:
    """FAIL when the value is beyond the limit. Raises NotMeasured when it was not measured."""
    screen = evidence.screen
    if screen is None or screen.tokens == 0:
        raise NotMeasured(f"screen {settings.metric!r} was not measured")
    if settings.metric not in _OF_TOKENS and not screen.block_errors:
        raise NotMeasured(f"screen {settings.metric!r} was not measured: no block errors")
    if settings.metric == "layer_error" and not screen.layer_errors and screen.block_errors:
        return _unknown_layers(settings, screen)
    value, unit = _VALUES[settings.metric](screen)
    if settings.max is not None:
        limit, within, sign = settings.max, value <= settings.max, "at most"
    else:
        assert settings.min is not None
        limit, within, sign = settings.min, value >= settings.min, "at least"
    verb = "within" if within else "beyond"
    return RuleResult(
        rule=settings.rule,
        metric=settings.metric,
        outcome=Outcome.PASS if within else Outcome.FAIL,
        blocking=settings.blocking,
        measured=value,
        limit=limit,
        n=screen.tokens,
        reason=f"{settings.metric} {value:.3g}{unit}, {verb} the limit of {sign} {limit:g}",
    )


def _unknown_layers(settings: Settings, screen: ScreenResult) -> RuleResult:
    """Which layers may be compared is family data; of other architectures only blocks are."""
    return RuleResult(
        rule=settings.rule,
        metric=settings.metric,
        outcome=Outcome.PASS,
        blocking=False,
        measured=None,
        limit=settings.max or 0.0,
        n=screen.tokens,
        reason="layers of this architecture cannot be compared one by one, only its blocks",
    )
