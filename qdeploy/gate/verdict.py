"""`verdict.json` and `blessing.json`: what may be deployed, where, and on what evidence."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import ClassVar

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema

VERDICT_NAME = "verdict.json"
BLESSING_NAME = "blessing.json"
JUNIT_NAME = "junit.xml"
SUMMARY_NAME = "summary.md"


class Outcome(str, Enum):
    """The four outcomes of a rule, a class or the whole gate."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"


EXIT_CODES = {
    Outcome.PASS: 0,
    Outcome.FAIL: 1,
    Outcome.ERROR: 2,
    Outcome.INCONCLUSIVE: 3,
}
"""The exit code of `qdeploy gate` by the overall outcome."""

_WORST_FIRST = (Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that decides among several; of none it is ERROR.

    FAIL decides over ERROR: a measured rejection stays one when something else was not
    measurable. PASS needs all of them.
    """
    found = set(outcomes)
    if not found:
        return Outcome.ERROR
    return next((outcome for outcome in _WORST_FIRST if outcome in found), Outcome.PASS)


class RuleResult(Schema):
    """One rule of the policy applied to one candidate in one task class."""

    rule: str
    """Name of the rule's file in qdeploy/gate/rules."""
    metric: str
    outcome: Outcome
    blocking: bool
    measured: float | None
    """The measured value: the paired difference, or the screen's value."""
    low: float | None = None
    high: float | None = None
    limit: float
    n: int
    needed: int | None = None
    """INCONCLUSIVE: about how many more items would decide it; None: more items of this kind
    would not."""
    reason: str


class ClassVerdict(Schema):
    """The outcome for one candidate in one task class."""

    task_class: str
    candidate: str
    outcome: Outcome
    reason: str
    rules: list[RuleResult]


class Verdict(Artifact):
    """All outcomes, where each task class goes, and the decision in a sentence."""

    SCHEMA: ClassVar[str] = "qdeploy.verdict/1"

    policy: str
    baseline: str
    required: list[str]
    """Candidates that must pass every class (`--require`)."""
    classes: list[ClassVerdict]
    routing: dict[str, str]
    """Task class -> the candidate that may serve it; classes without evidence go to the
    fallback."""
    outcome: Outcome
    decision: str
    """The answer in a sentence."""
    errors: list[str]


class Blessing(Artifact):
    """Permission to deploy, bound by hash to what it was given for."""

    SCHEMA: ClassVar[str] = "qdeploy.blessing/1"

    candidate: str
    task_classes: list[str]
    weights_digest: str
    calibration_digest: str | None
    suites: dict[str, str]
    policy_digest: str
    verdict_digest: str
    versions: dict[str, str]
    machine: str
    created: str
    """ISO 8601, UTC."""
