"""The items that a candidate lost and won most against the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from qdeploy.evals.results import ClassResult, Sample
from qdeploy.report.divergence import Parted, part


@dataclass(frozen=True)
class Side:
    """One candidate's answer."""

    name: str
    text: Parted
    notes: list[str]


@dataclass(frozen=True)
class Example:
    """One item side by side."""

    id: str
    lang: str
    prompt: str
    reference: str
    scores: list[str]
    """'exact_match 1 → 0', of the metrics that changed."""
    sides: list[Side]


def lost_and_won(
    result: ClassResult,
    baseline: list[Sample],
    candidate: list[Sample],
    names: tuple[str, str],
    most: int,
) -> tuple[list[Example], list[Example]]:
    """(items lost, items won), the largest difference first, at most `most` and one of them.

    By the primary metric, then by the others in the suite's order; `names` are the baseline's and
    the candidate's.
    """  # fmt: skip
    after = {sample.id: sample for sample in candidate}
    pairs = [(sample, after[sample.id]) for sample in baseline if sample.id in after]
    ranked = sorted(
        ((_gains(result, names[1], pair), at) for at, pair in enumerate(pairs)),
        key=lambda entry: entry[0],
    )
    zero = tuple(0.0 for _ in ranked[0][0]) if ranked else ()
    lost = [pairs[at] for gains, at in ranked if gains < zero][:most]
    won = [pairs[at] for gains, at in reversed(ranked) if gains > zero][: min(1, most)]
    return [_example(pair, names) for pair in lost], [_example(pair, names) for pair in won]


def _gains(result: ClassResult, name: str, pair: tuple[Sample, Sample]) -> tuple[float, ...]:
    """Per metric, how much better the candidate is; the primary metric first."""
    metrics = result.metrics.get(name, [])
    ordered = sorted(metrics, key=lambda metric: metric.metric != result.primary)
    before, after = (sample.scores for sample in pair)
    return tuple(
        (after[m.metric] - before[m.metric]) * (1 if m.direction == "higher" else -1)
        if m.metric in before and m.metric in after
        else 0.0
        for m in ordered
    )


def _example(pair: tuple[Sample, Sample], names: tuple[str, str]) -> Example:
    before, after = pair
    texts = part(before.output, after.output)
    return Example(
        id=before.id,
        lang=before.lang,
        prompt=before.prompt,
        reference=before.reference,
        scores=[
            f"{name} {value:.3g} → {after.scores[name]:.3g}"
            for name, value in before.scores.items()
            if name in after.scores and after.scores[name] != value
        ],
        sides=[
            Side(name, text, _notes(sample))
            for name, text, sample in zip(names, texts, pair, strict=True)
        ],
    )


def _notes(sample: Sample) -> list[str]:
    notes = [f"{sample.output_tokens} tokens", *(flag.replace("_", " ") for flag in sample.flags)]
    if sample.loop_onset is not None:
        notes.append(f"in a loop from token {sample.loop_onset}")
    return notes
