"""What a rule is: a file in `qdeploy/gate/rules` with `Settings` and `judge`.

`Settings` is a subclass of `RuleSettings`: the keys that a policy may give the rule.
`judge(settings, evidence) -> RuleResult` looks at one candidate in one task class. It raises
`NotMeasured` when what it needs is absent; the gate turns that into ERROR, never into a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from qdeploy.core.errors import InputError, nearest
from qdeploy.core.plugins import load_plugin
from qdeploy.core.schema import Schema, validate
from qdeploy.evals.results import ClassResult, Direction, Sample, ScreenResult
from qdeploy.evals.scoring import metric
from qdeploy.gate.verdict import RuleResult

_PACKAGE = "qdeploy.gate.rules"


class RuleSettings(Schema):
    """Keys of every rule in a policy."""

    rule: str
    """Name of the rule's file in qdeploy/gate/rules."""
    blocking: bool = True
    """False: the result is shown and decides nothing."""


class NotMeasured(Exception):  # noqa: N818 (not a failure of the program: an outcome)
    """What a rule needs is not in the report."""


@dataclass(frozen=True)
class Pairs:
    """One metric of one task class: the items that both sides answered, in the same order."""

    direction: Direction
    differences: list[float]
    """Candidate minus baseline, per item."""
    clusters: list[str]
    bound: float | None
    """The score's range; None: no limit."""


@dataclass(frozen=True)
class Evidence:
    """All that a rule may look at."""

    result: ClassResult
    candidate: str
    pairs: list[tuple[Sample, Sample]]
    """(baseline's, candidate's) sample of each item."""
    screen: ScreenResult | None
    alpha: float
    min_items: int

    def metric(self, name: str) -> Pairs:
        """The paired differences of metric `name`, over the items where both sides have a score.

        Raises NotMeasured when the metric is absent or no item has a score on both sides.
        """
        results = self.result.metrics.get(self.candidate, [])
        found = next((result for result in results if result.metric == name), None)
        if found is None:
            known = [result.metric for result in results]
            near = nearest(name, known)
            tip = f"did you mean {near!r}?" if near else f"measured: {', '.join(known) or 'none'}"
            raise NotMeasured(f"metric {name!r} was not measured; {tip}")
        differences, clusters = [], []
        for baseline, candidate in self.pairs:
            before, after = baseline.scores.get(name), candidate.scores.get(name)
            if before is not None and after is not None:
                differences.append(after - before)
                clusters.append(baseline.cluster)
        if not differences:
            raise NotMeasured(f"metric {name!r}: no item has a score on both sides (n = 0)")
        return Pairs(found.direction, differences, clusters, metric(name).RANGE)


Judge = Callable[[Any, Evidence], RuleResult]


def parse_rule(data: dict[str, Any], where: str) -> RuleSettings:
    """The settings of one rule of a policy.

    Raises InputError for an unknown rule or key (with the nearest known one) or a wrong value.
    """
    name = data.get("rule")
    if not isinstance(name, str):
        raise InputError(f"{where}: key 'rule' is missing", hint="name a rule, e.g. non_inferior")
    settings = cast("type[RuleSettings]", load_plugin(_PACKAGE, name, "gate rule").Settings)
    return validate(settings, data, where)


def judge_of(settings: RuleSettings) -> Judge:
    """The `judge` function of the rule that `settings` belong to."""
    return cast("Judge", load_plugin(_PACKAGE, settings.rule, "gate rule").judge)
