"""From samples to results: pure, so any report can be built again without a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdeploy.evals.results import ClassResult, Finding, MetricResult, Sample
from qdeploy.evals.scoring import metric
from qdeploy.evals.stats import CONFIDENCE, mean_interval, paired_interval

Samples = Mapping[str, Sample]
"""Item id -> sample."""

_EQUAL = 1e-9


@dataclass(frozen=True)
class TaskClass:
    """What a task class is and what should be there for it."""

    name: str
    suite: str
    kind: str
    lang: str
    item_ids: tuple[str, ...]
    skipped: int
    metrics: tuple[str, ...]
    primary: str
    floor: float


def compare_class(
    task: TaskClass,
    baseline: Samples,
    candidates: Mapping[str, Samples],
    noise: Samples,
    confidence: float = CONFIDENCE,
) -> tuple[ClassResult | None, list[Finding]]:
    """The results of one task class and what is wrong with them.

    `candidates`: name -> samples, the baseline left out; `noise`: the baseline's second run, on
    some of the items. The result is None where the baseline has no samples at all.
    """
    findings = [*_missing(task, None, baseline)]
    ours = {name: baseline[name] for name in task.item_ids if name in baseline}
    scored = [sample for sample in ours.values() if task.primary in sample.scores]
    if not scored:
        return None, findings
    results: dict[str, list[MetricResult]] = {}
    for name, theirs in candidates.items():
        findings += _missing(task, name, theirs)
        findings += _other_prompts(task, name, ours, theirs)
        results[name] = []
        for measure in task.metrics:
            result = _metric(measure, ours, theirs, noise, confidence)
            if result is None:
                findings.append(_not_measured(task, name, measure))
            else:
                results[name].append(result)
    standing, reason = _standing(task, scored, confidence)
    result_of_class = ClassResult(
        task_class=task.name,
        suite=task.suite,
        kind=task.kind,
        lang=task.lang,
        n=len(ours),
        skipped=task.skipped,
        primary=task.primary,
        floor=task.floor,
        baseline_primary=standing,
        informative=not reason,
        reason=reason,
        metrics=results,
    )
    return result_of_class, findings


def _standing(task: TaskClass, scored: list[Sample], confidence: float) -> tuple[float, str]:
    """(the baseline's primary score, why it says nothing or '')."""
    mean, low, _ = mean_interval(
        [sample.scores[task.primary] for sample in scored],
        [sample.cluster for sample in scored],
        confidence,
    )
    if low > task.floor:
        return mean, ""
    return mean, (
        f"the baseline is not clearly above guessing: {task.primary} {mean:.3f}, "
        f"at least {low:.3f} with {(1 + confidence) / 2:.0%} certainty, floor {task.floor:.3f}"
    )


def _metric(
    name: str, baseline: Samples, candidate: Samples, noise: Samples, confidence: float
) -> MetricResult | None:
    """The paired comparison; None when no pair or too few clusters have the metric."""
    pairs = _pairs(name, baseline, candidate)
    if not pairs:
        return None
    differences = [theirs.scores[name] - ours.scores[name] for ours, theirs in pairs]
    clusters = [ours.cluster for ours, _ in pairs]
    plugin = metric(name)
    if plugin.RANGE is None and len(set(clusters)) < 2:
        return None
    mean, low, high = paired_interval(differences, clusters, confidence, plugin.RANGE)
    sign = 1 if plugin.DIRECTION == "higher" else -1
    again = [
        second.scores[name] - first.scores[name] for first, second in _pairs(name, baseline, noise)
    ]
    return MetricResult(
        metric=name,
        direction=plugin.DIRECTION,
        n=len(pairs),
        clusters=len(set(clusters)),
        baseline=sum(ours.scores[name] for ours, _ in pairs) / len(pairs),
        candidate=sum(theirs.scores[name] for _, theirs in pairs) / len(pairs),
        difference=mean,
        low=low,
        high=high,
        confidence=confidence,
        worse=sum(sign * difference < -_EQUAL for difference in differences),
        better=sum(sign * difference > _EQUAL for difference in differences),
        noise=sum(again) / len(again) if again else None,
        noise_changed=sum(abs(change) > _EQUAL for change in again) if again else None,
    )


def _pairs(name: str, first: Samples, second: Samples) -> list[tuple[Sample, Sample]]:
    return [
        (sample, second[item])
        for item, sample in first.items()
        if item in second and name in sample.scores and name in second[item].scores
    ]


def _missing(task: TaskClass, candidate: str | None, samples: Samples) -> list[Finding]:
    absent = [name for name in task.item_ids if name not in samples]
    unscored = [
        name
        for name in task.item_ids
        if name in samples and task.primary not in samples[name].scores
    ]
    findings: list[Finding] = []
    for names, what in ((absent, "no sample"), (unscored, f"no {task.primary}")):
        if names:
            findings.append(
                Finding(
                    level="error",
                    candidate=candidate,
                    code="missing_samples",
                    message=f"{task.name}: {what} for {len(names)} of {len(task.item_ids)} items, "
                    f"{names[0]} among them",
                )
            )
    return findings


def _other_prompts(
    task: TaskClass, name: str, baseline: Samples, candidate: Samples
) -> list[Finding]:
    other = [
        item
        for item, sample in baseline.items()
        if item in candidate and candidate[item].prompt_hash != sample.prompt_hash
    ]
    if not other:
        return []
    message = f"{task.name}: {len(other)} items were asked with other tokens, {other[0]} among them"
    return [Finding(level="error", candidate=name, code="prompt_mismatch", message=message)]


def _not_measured(task: TaskClass, name: str, measure: str) -> Finding:
    return Finding(
        level="warning",
        candidate=name,
        code="not_measured",
        message=f"{task.name}: {measure} could not be compared: too few answers that it applies to",
    )
