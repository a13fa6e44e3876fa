from __future__ import annotations

import re
from typing import Any

import pytest

from qdeploy.gate.verdict import Outcome
from qdeploy.quant.manifest import LayerRecord
from qdeploy.report.charts.differences import Difference, differences_chart
from qdeploy.report.charts.frame import Scale, log_scale, nice_step
from qdeploy.report.charts.layers import blocks_chart, linears_chart
from qdeploy.report.charts.loops import loop_share, loops_chart
from qdeploy.report.charts.memory import serving_chart


def test_scales_map_to_percent_and_stay_inside() -> None:
    linear = Scale(-2, 2)
    assert [linear(v) for v in (-3, -2, 0, 2, 3)] == [0, 0, 50, 100, 100]
    logarithmic = Scale(1e-4, 1, log=True)
    assert logarithmic(1e-2) == pytest.approx(50)
    assert logarithmic(0) == 0
    assert logarithmic.ticks() == [
        (pytest.approx(25 * at), label)
        for at, label in enumerate(["0.0001", "0.001", "0.01", "0.1", "1"])
    ]
    assert [label for _, label in Scale(0, 0.25).ticks(5)] == ["0", "0.05", "0.1", "0.15", "0.2",
                                                               "0.25"]  # fmt: skip


@pytest.mark.parametrize(
    ("least", "step"), [(1, 1), (1.1, 2), (2.5, 5), (5, 5), (7, 10), (0.011, 0.02), (99, 100)]
)
def test_steps_are_round(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)


def test_log_scale_needs_a_positive_value() -> None:
    assert log_scale([]) is None
    assert log_scale([0.0]) is None
    assert log_scale([0.0, 0.003, 0.2]) == Scale(1e-3, 1.0, log=True)
    assert log_scale([0.01]) == Scale(0.01, 0.1, log=True)


def test_loop_share_counts_texts_whose_loop_has_begun(factory: Any) -> None:
    items = factory.Items("long_generation", "en", n=10)
    items.scores["int8"] = factory.worse("loop_free", range(4))
    samples = [factory.sample(items, "int8", at) for at in range(10)]
    points = loop_share(samples, 256)
    for position in (0, 29, 30, 31, 33, 34, 256):
        expected = sum(s.loop_onset is not None and s.loop_onset <= position for s in samples) / 10
        assert [share for at, share in points if at <= position][-1] == pytest.approx(expected)
    assert "int8: 40.0% of 10 texts" in loops_chart([("int8", samples)])
    assert loops_chart([]) == ""


def _place(chart: str) -> float:
    found = re.search(r'class="mean" cx="([\d.]+)%"', chart)
    assert found is not None
    return float(found[1])


def test_differences_are_drawn_in_margins_with_better_on_the_right() -> None:
    def row(mean: float, higher: bool) -> Difference:
        return Difference(
            "short_qa.en", "int8 · m", mean, mean - 0.05, mean + 0.05, 0.1, higher, Outcome.PASS, 9
        )

    assert _place(differences_chart([row(-0.1, True)])) == pytest.approx(100 / 3, abs=0.01)
    assert _place(differences_chart([row(0.1, False)])) == pytest.approx(100 / 3, abs=0.01)
    assert _place(differences_chart([row(9.0, True)])) == 100
    assert differences_chart([]) == ""


def test_differences_without_policy_or_interval_are_drawn_too() -> None:
    bare = Difference("a", "int8 · m", 0.0, None, None, None, True, None, 1)
    zero = Difference("a", "int8 · m", 0.0, 0.0, 0.0, None, True, None, 3)
    chart = differences_chart([bare, zero])
    assert chart.count('class="mean"') == 2
    assert "−margin" not in chart
    assert "badge" not in chart


def test_layers_show_every_layer_and_the_limit(factory: Any) -> None:
    chart = blocks_chart([(1, factory.screen("int8"))], 0.04)
    assert chart.count('class="dot s1"') == 4
    assert "limit of the policy: 0.04" in chart
    assert blocks_chart([(1, factory.screen("int8", block_errors=[]))], None) == ""
    layers = [
        LayerRecord(
            name=f"model.layers.{at}.mlp.{kind}", block=at, scheme="w8", method="rtn",
            output_error=error,
        )
        for at in range(3)
        for kind, error in (("up_proj", 0.001), ("down_proj", 0.0))
    ]  # fmt: skip
    chart = linears_chart(layers)
    assert (chart.count('"dot s0"'), chart.count('"dot s1"')) == (3, 3)
    assert linears_chart([]) == ""


def test_serving_bars_are_relative_to_the_largest(factory: Any) -> None:
    both = [factory.info("bf16", weights_bytes=2000), factory.info("int8", weights_bytes=1000)]
    chart = serving_chart(both)
    assert 'width="50.00%"' in chart
    assert "(50%)" in chart
    assert serving_chart([]) == ""
    assert serving_chart([factory.info("bf16", weights_bytes=0)]) == ""
