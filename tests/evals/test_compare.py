from __future__ import annotations

import pytest

from qdeploy.evals.compare import TaskClass, compare_class
from qdeploy.evals.results import Sample
from qdeploy.evals.stats import paired_interval

METRICS = ("contains", "length_ratio")


def task(n: int, floor: float = 0.1) -> TaskClass:
    ids = tuple(f"i{k}" for k in range(n))
    return TaskClass("qa.en", "qa", "short_qa", "en", ids, 2, METRICS, "contains", floor)


def samples(values: list[float], prompt_hash: str = "h", ratio: float = 1.0) -> dict[str, Sample]:
    return {
        f"i{k}": Sample(
            id=f"i{k}",
            task_class="qa.en",
            lang="en",
            cluster=f"c{k // 2}",
            prompt_hash=prompt_hash,
            prompt_tokens=1,
            prompt="q",
            reference="r",
            output="o",
            finish_reason="stop",
            output_tokens=1,
            scores={"contains": value, "length_ratio": ratio + 0.5 * (k % 3)},
        )
        for k, value in enumerate(values)
    }


def test_a_comparison() -> None:
    ours = [1.0, 1, 1, 1, 1, 0, 0, 1, 1, 1]
    theirs = [1.0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    again = [1.0, 1, 1, 0]
    result, findings = compare_class(
        task(10), samples(ours), {"int8": samples(theirs, ratio=2.0)}, samples(again)
    )
    assert findings == []
    assert result is not None
    assert (result.n, result.skipped, result.baseline_primary) == (10, 2, 0.8)
    assert result.informative
    contains, length = result.metrics["int8"]
    differences = [b - a for a, b in zip(ours, theirs, strict=True)]
    wanted = paired_interval(differences, [k // 2 for k in range(10)])
    assert (contains.difference, contains.low, contains.high) == pytest.approx(wanted)
    assert (contains.baseline, contains.candidate) == (0.8, pytest.approx(0.7))
    assert (contains.worse, contains.better, contains.n, contains.clusters) == (2, 1, 10, 5)
    assert (contains.noise, contains.noise_changed) == (-0.25, 1)
    assert (length.direction, length.worse, length.better) == ("lower", 10, 0)


@pytest.mark.parametrize(("floor", "informative"), [(0.1, True), (0.5, False)])
def test_a_baseline_must_beat_guessing(floor: float, informative: bool) -> None:
    same = samples([1.0, 0.0] * 10)
    result, _ = compare_class(task(20, floor), same, {"int8": same}, {})
    assert result is not None
    assert result.informative is informative
    assert ("not clearly above guessing" in result.reason) is not informative
    assert result.metrics["int8"][0].noise is None


def test_missing_samples_are_errors() -> None:
    ours, theirs = samples([1.0] * 4), samples([1.0] * 3)
    _, findings = compare_class(task(4), ours, {"int8": theirs}, {})
    assert [(f.level, f.candidate, f.code) for f in findings] == [
        ("error", "int8", "missing_samples")
    ]
    assert "1 of 4 items, i3" in findings[0].message


def test_a_score_that_is_missing_is_an_error() -> None:
    ours, theirs = samples([1.0] * 4), samples([1.0] * 4)
    theirs["i2"] = theirs["i2"].model_copy(update={"scores": {}})
    result, findings = compare_class(task(4), ours, {"int8": theirs}, {})
    assert [f.code for f in findings] == ["missing_samples"]
    assert result is not None
    assert result.metrics["int8"][0].n == 3


def test_no_sample_of_the_baseline_gives_no_result() -> None:
    result, findings = compare_class(task(4), {}, {"int8": samples([1.0] * 4)}, {})
    assert result is None
    assert [(f.level, f.candidate) for f in findings] == [("error", None)]


def test_other_prompts_are_an_error() -> None:
    _, findings = compare_class(
        task(4), samples([1.0] * 4), {"int8": samples([1.0] * 4, prompt_hash="other")}, {}
    )
    assert [f.code for f in findings] == ["prompt_mismatch"]


def test_one_cluster_has_no_interval_without_a_range() -> None:
    result, findings = compare_class(
        task(2), samples([1.0, 1.0]), {"int8": samples([1.0, 1.0])}, {}
    )
    assert result is not None
    assert [m.metric for m in result.metrics["int8"]] == ["contains"]
    assert (result.metrics["int8"][0].low, result.metrics["int8"][0].high) == (-1, 1)
    assert [(f.level, f.code) for f in findings] == [("warning", "not_measured")]
