from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.artifacts import read_artifact
from qdeploy.core.errors import InputError
from qdeploy.core.schema import validate
from qdeploy.plan.schema import Candidate
from qdeploy.train.callbacks.context import log_path
from qdeploy.train.callbacks.events import Ended, Grew, Logged, Peak, Scaled, Started, Stepped
from qdeploy.train.dry_run import dry_run
from qdeploy.train.recipe import Recipe
from qdeploy.train.report import TrainReport, collect, imbalance, imbalance_warnings

PLAN = {"load": 1, "forward": 70, "backward": 80, "step": 90}


@pytest.fixture(scope="module")
def planned() -> Candidate:
    data = {
        "model": "Qwen/Qwen2.5-0.5B", "data": {"path": "d"}, "hardware": {"gpu": "cpu"},
        "strategy": {"name": "none", "offload": "none"},
    }  # fmt: skip
    return dry_run(validate(Recipe, data, "recipe")).candidate


def started(time: float, rank: int = 0, device: str = "cpu", before: int = 100) -> Started:
    return Started.model_validate(
        {
            "time": time, "rank": rank, "world": 2, "device": device, "resident_by": "kernel",
            "before": {"resident_bytes": before}, "planned": PLAN,
        }
    )  # fmt: skip


def grew(at: int, /, **residents: int) -> Grew:
    return Grew.model_validate(
        {
            "step": at,
            "peaks": {phase: {"resident_bytes": size} for phase, size in residents.items()},
        }
    )


def stepped(time: float, step: int, tokens: int = 10) -> Stepped:
    return Stepped(time=time, step=step, seconds=0.5, tokens=tokens)


def write(out: Path, rank: int, events: list[Any], tail: str = "") -> None:
    path = log_path(out, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [event.model_dump_json() for event in events]
    path.write_text("\n".join(lines) + "\n" + tail, encoding="utf-8")


def one_run(out: Path) -> None:
    write(out, 0, [
        started(1000.0),
        grew(1, load=400, forward=150, backward=170, step=160, between=500),
        stepped(1010.0, 1, 8), Logged(step=1, loss=3.0, grad_norm=1.5, learning_rate=0.1),
        grew(2, load=400, forward=190, backward=170, step=160, between=500),
        stepped(1020.0, 2, 6), Logged(step=2, loss=2.5),
        stepped(1030.0, 3, 4), Logged(step=3),
        Ended(time=1040.0, step=3),
    ])  # fmt: skip
    write(out, 1, [
        started(1001.0, 1, before=90),
        grew(1, load=400, forward=150, backward=185, step=160),
        stepped(1010.0, 1, 5), stepped(1020.0, 2, 5), stepped(1030.0, 3, 2),
    ])  # fmt: skip


def report_of(out: Path, planned: Candidate, world: int = 2) -> TrainReport:
    return collect(out, planned=planned, world=world, inputs={"recipe": "r", "data": "d"})


def test_a_run(tmp_path: Path, planned: Candidate) -> None:
    one_run(tmp_path)
    report = report_of(tmp_path, planned)
    assert (report.device, report.basis) == ("cpu", "resident")
    assert [rank.peak_bytes for rank in report.ranks] == [190 - 100, 185 - 90]
    assert report.measured_bytes == 95
    assert report.planned_bytes == planned.per_gpu.total_bytes
    assert report.within_interval is False
    assert report.imbalance == pytest.approx(5 / 95)
    assert report.warnings == ()
    shown = [(p.phase, p.planned_bytes, p.measured_bytes) for p in report.ranks[0].phases]
    assert shown == [
        ("load", 1, 300), ("forward", 70, 90), ("backward", 80, 70), ("step", 90, 60),
        ("between", None, 400),
    ]  # fmt: skip
    assert report.steps == 3
    assert report.tokens == 8 + 6 + 4 + 5 + 5 + 2
    assert report.tokens_per_second == pytest.approx(30 / 1.5)
    assert report.wall_seconds == 40.0
    assert report.starts == 1
    assert [(point.step, point.loss) for point in report.loss] == [(1, 3.0), (2, 2.5)]
    assert (report.skipped_steps, report.overflow_rate, report.loss_scale) == (0, 0.0, ())
    assert report.inputs == {"recipe": "r", "data": "d"}
    assert "torch" in report.versions


def test_it_is_read_back(tmp_path: Path, planned: Candidate) -> None:
    one_run(tmp_path)
    report = report_of(tmp_path, planned)
    report.write(tmp_path / "train_report.json")
    assert read_artifact(tmp_path / "train_report.json", TrainReport) == report


def test_within_the_interval_at_its_ends(tmp_path: Path, planned: Candidate) -> None:
    parts = planned.per_gpu
    for size, within in (
        (parts.low_bytes - 1, False), (parts.low_bytes, True),
        (parts.high_bytes, True), (parts.high_bytes + 1, False),
    ):  # fmt: skip
        write(tmp_path, 0, [
            started(0.0), grew(1, forward=100 + size, backward=0, step=0), stepped(1.0, 1),
        ])  # fmt: skip
        assert report_of(tmp_path, planned, world=1).within_interval is within


def test_a_run_that_was_killed_and_continued(tmp_path: Path, planned: Candidate) -> None:
    """The second start goes on from the checkpoint of step 1, so steps 2 and 3 are done again."""
    first = [
        started(0.0), grew(1, forward=150), stepped(10.0, 1), stepped(20.0, 2), stepped(30.0, 3),
        Logged(step=3, loss=9.0),
    ]  # fmt: skip
    second = [
        started(1000.0, before=120), grew(2, forward=160), stepped(1005.0, 2, 20),
        stepped(1015.0, 3, 30), Logged(step=3, loss=1.0), stepped(1020.0, 4, 40),
    ]  # fmt: skip
    whole = [event.model_dump_json() for event in first]
    later = [event.model_dump_json() for event in second]
    path = log_path(tmp_path, 0)
    path.parent.mkdir()
    path.write_text("\n".join([*whole, '{"event":"ste', *later, '{"event"']), encoding="utf-8")
    report = report_of(tmp_path, planned, world=1)
    assert report.starts == 2
    assert report.steps == 4
    assert report.tokens == 10 + 20 + 30 + 40
    assert report.wall_seconds == 30.0 + 20.0
    assert [(point.step, point.loss) for point in report.loss] == [(3, 1.0)]
    # Each start has its own bare process.
    assert report.measured_bytes == max(150 - 100, 160 - 120)


def test_loss_scale(tmp_path: Path, planned: Candidate) -> None:
    scales = [(8.0, False), (4.0, True), (4.0, False), (2.0, True), (4.0, False)]
    events: list[Any] = [started(0.0)]
    for step, (scale, skipped) in enumerate(scales, start=1):
        events += [Scaled(step=step, scale=scale, skipped=skipped), stepped(float(step), step)]
    write(tmp_path, 0, events)
    report = report_of(tmp_path, planned, world=1)
    assert (report.skipped_steps, report.overflow_rate) == (2, 0.4)
    curve = [(point.step, point.scale) for point in report.loss_scale]
    assert curve == [(1, 8.0), (2, 4.0), (4, 2.0), (5, 4.0)]


def test_the_device_is_the_basis_on_gpus(tmp_path: Path, planned: Candidate) -> None:
    peak = Peak(resident_bytes=1, allocated_bytes=5, reserved_bytes=7, device_bytes=9)
    write(tmp_path, 0, [
        started(0.0, device="cuda"), Grew(step=1, peaks={"forward": peak}), stepped(1.0, 1),
    ])  # fmt: skip
    report = report_of(tmp_path, planned, world=1)
    assert (report.basis, report.measured_bytes) == ("device", 9)


@pytest.mark.parametrize(
    ("peaks", "apart"), [([5], 0.0), ([0, 0], 0.0), ([100, 90], 0.1), ([50, 100, 75], 0.5)]
)
def test_imbalance(peaks: list[int], apart: float) -> None:
    assert imbalance(peaks) == pytest.approx(apart)


def test_imbalance_is_warned_about_above_ten_percent() -> None:
    assert imbalance_warnings([1000, 900]) == ()
    (line,) = imbalance_warnings([2048, 4096, 3072])
    assert line.startswith("rank 1 takes 4.0 KiB at its peak, rank 0 2.0 KiB: 50% less")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not begin with a start"),
        ('{"event":"other"}\n{"event":"ended","time":1,"step":1}\n', "line 1 is no line"),
        (started(0.0).model_dump_json() + "\n", "has no finished step"),
    ],
)
def test_bad_logs(tmp_path: Path, planned: Candidate, text: str, message: str) -> None:
    log_path(tmp_path, 0).parent.mkdir()
    log_path(tmp_path, 0).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        report_of(tmp_path, planned, world=1)


def test_a_rank_without_a_log(tmp_path: Path, planned: Candidate) -> None:
    one_run(tmp_path)
    with pytest.raises(InputError, match=r"no such file: .*rank-2\.jsonl"):
        report_of(tmp_path, planned, world=3)
