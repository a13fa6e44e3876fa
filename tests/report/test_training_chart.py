from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from qdeploy.core.schema import validate
from qdeploy.core.units import GIB
from qdeploy.report.charts.training import training_svg
from qdeploy.train.callbacks.events import Peak
from qdeploy.train.dry_run import dry_run
from qdeploy.train.recipe import Recipe
from qdeploy.train.report import LossPoint, PhaseMemory, RankMemory, ScalePoint, TrainReport

SVG = "{http://www.w3.org/2000/svg}"


def report(losses: list[float], scales: list[float], sizes: tuple[int, ...]) -> TrainReport:
    data = {
        "model": "Qwen/Qwen2.5-0.5B", "data": {"path": "d"}, "hardware": {"gpu": "cpu"},
        "strategy": {"name": "none", "offload": "none"},
    }  # fmt: skip
    peak = Peak(resident_bytes=1)
    ranks = tuple(
        RankMemory(
            rank=rank,
            before_bytes=0,
            peak_bytes=size,
            phases=(
                PhaseMemory(phase="step", planned_bytes=GIB, measured_bytes=size, peak=peak),
                PhaseMemory(phase="between", planned_bytes=None, measured_bytes=1, peak=peak),
            ),
        )
        for rank, size in enumerate(sizes)
    )
    return TrainReport(
        planned=dry_run(validate(Recipe, data, "recipe")).candidate, device="cpu",
        basis="resident", planned_bytes=GIB, measured_bytes=max(sizes), within_interval=True,
        ranks=ranks, imbalance=0.0, steps=max(1, len(losses)), skipped_steps=1, overflow_rate=0.0,
        loss_scale=tuple(ScalePoint(step=1 + at, scale=s) for at, s in enumerate(scales)),
        loss=tuple(
            LossPoint(step=1 + at, loss=loss, grad_norm=None, learning_rate=None)
            for at, loss in enumerate(losses)
        ),
        tokens=1, tokens_per_second=1.0, wall_seconds=1.0, starts=1, checkpoint_sha256=None,
        versions={}, warnings=(),
    )  # fmt: skip


def drawn(*made: object) -> ET.Element:
    return ET.fromstring(training_svg(report(*made)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("losses", "scales", "curves", "dots"),
    [
        ([], [], 0, 0),
        ([3.0], [], 0, 1),
        ([3.0, 2.0], [], 1, 0),
        ([0.0, 0.0], [], 1, 0),
        ([3.0, 2.0, 2.5], [65536.0, 32768.0], 2, 0),
    ],
)
def test_panels(losses: list[float], scales: list[float], curves: int, dots: int) -> None:
    svg = drawn(losses, scales, (GIB,))
    assert len(svg.findall(f".//{SVG}polyline")) == curves
    assert len(svg.findall(f".//{SVG}circle")) == dots
    height = float(svg.attrib["viewBox"].split()[3])
    for rect in svg.findall(f"{SVG}g//{SVG}rect"):
        assert 0 <= float(rect.attrib["y"]) <= float(rect.attrib["y"]) + 1 <= height


def test_memory_is_that_of_the_fullest_rank() -> None:
    svg = drawn([3.0], [], (GIB // 2, 2 * GIB))
    words = "".join(svg.itertext())
    assert "GiB of rank 1" in words
    assert "step: 2.0 GiB measured, 1.0 GiB planned" in words
    bars = {rect.attrib["class"]: rect for rect in svg.findall(f"{SVG}g//{SVG}rect")[:2]}
    ratio = float(bars["measured"].attrib["height"]) / float(bars["planned"].attrib["height"])
    assert ratio == pytest.approx(2.0, rel=0.01)


def test_the_words_say_what_is_drawn() -> None:
    words = drawn([3.0, 2.5], [], (GIB,)).find(f"{SVG}desc")
    assert words is not None
    assert words.text == "Loss 3 at step 1, 2.5 at step 2. Peak memory 1.0 GiB, planned 1.0 GiB."


def test_very_many_points_keep_the_last() -> None:
    svg = drawn([float(at) for at in range(1301)], [], (GIB,))
    line = svg.find(f".//{SVG}polyline")
    assert line is not None
    points = line.attrib["points"].split()
    assert 600 <= len(points) <= 1000
    assert points[-1].startswith("732.0,")
