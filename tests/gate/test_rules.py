from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.plugins import plugin_names
from qdeploy.evals.results import ClassResult, MetricResult
from qdeploy.evals.stats import paired_interval
from qdeploy.gate.rule import Evidence, NotMeasured, judge_of, parse_rule
from qdeploy.gate.verdict import Outcome, RuleResult


def _evidence(factory: Any, gains: list[float], screen: Any = None, min_items: int = 1) -> Evidence:
    """Items of one task class whose exact_match changes by `gains` (each -1, 0 or 1)."""
    items = factory.Items("short_qa", "en", n=len(gains), cluster_size=1)
    items.scores["bf16"] = {at: {"exact_match": 0.0} for at, g in enumerate(gains) if g > 0}
    items.scores["int8"] = {at: {"exact_match": 0.0} for at, g in enumerate(gains) if g < 0}
    pairs = [
        (factory.sample(items, "bf16", at), factory.sample(items, "int8", at))
        for at in range(len(gains))
    ]
    measured = MetricResult(
        metric="exact_match", direction="higher", n=len(gains), clusters=len(gains), baseline=1,
        candidate=1, difference=0, low=0, high=0, confidence=0.9, worse=0, better=0,
    )  # fmt: skip
    result = ClassResult(
        task_class="short_qa.en", suite="short_qa", kind="short_qa", lang="en", n=len(gains),
        skipped=0, primary="exact_match", floor=0.0, baseline_primary=1.0, informative=True,
        reason="", metrics={"int8": [measured]},
    )  # fmt: skip
    return Evidence(result, "int8", pairs, screen, alpha=0.05, min_items=min_items)


def _judge(evidence: Evidence, **keys: Any) -> RuleResult:
    rule = parse_rule(keys, "test")
    return judge_of(rule)(rule, evidence)


def test_every_rule_has_settings_and_a_judge() -> None:
    names = plugin_names("qdeploy.gate.rules")
    assert names == ["informative", "min_items", "non_inferior", "screen"]


@pytest.mark.parametrize(
    "gains",
    [[0.0] * 40, [-1.0] * 4 + [0.0] * 96, [-1.0] * 30 + [0.0] * 30, [1.0] * 5 + [0.0] * 60,
     [-1.0] * 10 + [1.0] * 10 + [0.0] * 80],
)  # fmt: skip
def test_non_inferior_is_the_interval_against_the_margin(factory: Any, gains: list[float]) -> None:
    result = _judge(
        _evidence(factory, gains), rule="non_inferior", metric="exact_match", margin=0.1
    )
    mean, low, high = paired_interval(gains, [str(at) for at in range(len(gains))], 0.90, 1.0)
    assert (result.measured, result.low, result.high) == pytest.approx((mean, low, high))
    expected = Outcome.PASS if low > -0.1 else Outcome.FAIL if high < -0.1 else Outcome.INCONCLUSIVE
    assert result.outcome is expected
    assert (result.needed is not None) <= (expected is Outcome.INCONCLUSIVE)


def test_a_metric_that_skips_items_pairs_the_rest(factory: Any) -> None:
    evidence = _evidence(factory, [0.0] * 10)
    evidence.pairs[0][1].scores.pop("exact_match")
    evidence.pairs[1][0].scores.pop("exact_match")
    assert len(evidence.metric("exact_match").differences) == 8
    for before, _ in evidence.pairs:
        before.scores.pop("exact_match", None)
    with pytest.raises(NotMeasured, match="n = 0"):
        evidence.metric("exact_match")


@pytest.mark.parametrize(
    ("keys", "outcome"),
    [
        ({"metric": "kl_mean", "max": 0.01}, Outcome.PASS),
        ({"metric": "kl_mean", "max": 0.009}, Outcome.FAIL),
        ({"metric": "kl_p99", "max": 0.1}, Outcome.FAIL),
        ({"metric": "top1_agreement", "min": 0.95}, Outcome.PASS),
        ({"metric": "top1_agreement", "min": 0.96}, Outcome.FAIL),
        ({"metric": "block_error", "max": 0.006}, Outcome.PASS),
        ({"metric": "block_error", "max": 0.005}, Outcome.FAIL),
        ({"metric": "block_outlier", "max": 1.8}, Outcome.PASS),
        ({"metric": "block_outlier", "max": 1.7}, Outcome.FAIL),
    ],
)
def test_screens_have_limits_and_the_limit_itself_is_within(
    factory: Any, keys: dict[str, Any], outcome: Outcome
) -> None:
    evidence = _evidence(factory, [0.0] * 3, factory.screen("int8"))
    assert _judge(evidence, rule="screen", **keys).outcome is outcome


def test_one_bad_block_among_exact_ones_is_an_outlier(factory: Any) -> None:
    bad = _evidence(factory, [0.0], factory.screen("int8", block_errors=[0.0, 0.0, 0.1]))
    assert _judge(bad, rule="screen", metric="block_outlier", max=100).outcome is Outcome.FAIL
    exact = _evidence(factory, [0.0], factory.screen("int8", block_errors=[0.0, 0.0, 0.0]))
    assert _judge(exact, rule="screen", metric="block_outlier", max=100).outcome is Outcome.PASS


def test_a_wrong_scale_in_one_layer_is_found_and_named(factory: Any) -> None:
    errors = {"0.self_attn.q_proj": 0.25, "0.mlp.down_proj": 0.01}
    evidence = _evidence(factory, [0.0], factory.screen("int8", layer_errors=errors))
    result = _judge(evidence, rule="screen", metric="layer_error", max=0.1)
    assert result.outcome is Outcome.FAIL
    assert "in block 0 layer self_attn.q_proj" in result.reason


def test_layers_of_an_unknown_architecture_are_not_held_against_it(factory: Any) -> None:
    evidence = _evidence(factory, [0.0], factory.screen("int8", layer_errors={}))
    result = _judge(evidence, rule="screen", metric="layer_error", max=0.1)
    assert (result.outcome, result.blocking, result.measured) == (Outcome.PASS, False, None)


def test_a_screen_of_no_tokens_was_not_measured(factory: Any) -> None:
    evidence = _evidence(factory, [0.0], factory.screen("int8", tokens=0))
    with pytest.raises(NotMeasured):
        _judge(evidence, rule="screen", metric="kl_mean", max=1)


def test_min_items_says_how_many_are_missing(factory: Any) -> None:
    evidence = _evidence(factory, [0.0] * 20)
    assert _judge(evidence, rule="min_items", min=20).outcome is Outcome.PASS
    short = _judge(evidence, rule="min_items", min=50)
    assert (short.outcome, short.needed) == (Outcome.INCONCLUSIVE, 30)
