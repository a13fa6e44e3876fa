"""`train_report.json`: what a run measured, beside what was planned.

It is made from the logs that the callbacks of every rank write, so a run that was killed and
continued has one report over all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from qdeploy.core.artifacts import Artifact
from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema
from qdeploy.core.units import format_bytes
from qdeploy.plan.schema import Candidate
from qdeploy.train.callbacks.context import Device, log_path
from qdeploy.train.callbacks.events import (
    PHASES,
    Ended,
    Event,
    Grew,
    Logged,
    Peak,
    Phase,
    Scaled,
    Started,
    Stepped,
    parse,
)

MOST_IMBALANCE = 0.10
"""Ranks whose peaks differ by more than this share are warned about."""

_PACKAGES = (
    "qdeploy", "torch", "transformers", "trl", "accelerate", "deepspeed", "peft", "bitsandbytes",
)  # fmt: skip


class PhaseMemory(Schema):
    """One phase of one rank."""

    phase: Phase
    planned_bytes: int | None
    """None: the plan has no number for this phase."""
    measured_bytes: int
    """The peak on the basis of the report."""
    peak: Peak


class RankMemory(Schema):
    """Peak memory of one rank."""

    rank: int
    before_bytes: int
    """Physical memory of the process before the model was loaded."""
    peak_bytes: int
    """The largest of the phases of a step, on the basis of the report."""
    phases: tuple[PhaseMemory, ...]


class LossPoint(Schema):
    """What the trainer logged at a step; None: not logged, or not finite."""

    step: int
    loss: float
    grad_norm: float | None
    learning_rate: float | None


class ScalePoint(Schema):
    """The loss scale from this step on."""

    step: int
    scale: float


class TrainReport(Artifact):
    """A training run, measured beside its plan."""

    SCHEMA: ClassVar[str] = "qdeploy.train-report/1"

    planned: Candidate
    device: Device
    basis: Literal["device", "resident"]
    """device: all that a process takes of its GPU. resident: physical memory of a process above
    what it had before the model was loaded; the plan's number is that of the tensors alone."""
    planned_bytes: int
    measured_bytes: int
    """The peak of the fullest rank."""
    within_interval: bool
    """The peak of the fullest rank lies between the plan's `low_bytes` and `high_bytes`."""
    ranks: tuple[RankMemory, ...]
    imbalance: float = Field(ge=0, le=1)
    """(largest - smallest) / largest of the ranks' peaks."""
    steps: int
    skipped_steps: int
    """FP16 steps that were left out because their gradients were infinite."""
    overflow_rate: float = Field(ge=0, le=1)
    """Skipped steps over all steps with a loss scale; 0 without."""
    loss_scale: tuple[ScalePoint, ...]
    """Where the loss scale changed; empty without one."""
    loss: tuple[LossPoint, ...]
    tokens: int
    """Tokens of all ranks in all steps, padding left out."""
    tokens_per_second: float
    """`tokens` over the time of the steps: forward, backward and optimizer, without reading data,
    evaluation and saving."""
    wall_seconds: float
    """From before the model was loaded to the last step, of all starts together."""
    starts: int
    """How often the run was started: 1, and 1 more for every time it was continued."""
    checkpoint_sha256: str | None
    """Of the weights that the run wrote; None: it wrote none."""
    versions: dict[str, str]
    warnings: tuple[str, ...]


def collect(
    out: Path,
    *,
    planned: Candidate,
    world: int,
    inputs: Mapping[str, str],
    checkpoint_sha256: str | None = None,
) -> TrainReport:
    """The report of the run in `out`, from the logs of its `world` ranks.

    `inputs` are the digests of what it was made from: recipe, data, model. Raises InputError for a
    log that is missing, malformed or without a finished step.
    """
    runs = [_read(log_path(out, rank)) for rank in range(world)]
    first = runs[0]
    basis: Literal["device", "resident"] = "device" if first.device == "cuda" else "resident"
    ranks = tuple(_memory(run, rank, basis) for rank, run in enumerate(runs))
    peaks = [rank.peak_bytes for rank in ranks]
    scaled = list(first.scaled.values())
    skipped = sum(scale.skipped for scale in scaled)
    tokens = sum(step.tokens for run in runs for step in run.stepped.values())
    seconds = sum(step.seconds for step in first.stepped.values())
    parts = planned.per_gpu
    return TrainReport(
        inputs=dict(inputs),
        planned=planned,
        device=first.device,
        basis=basis,
        planned_bytes=parts.total_bytes,
        measured_bytes=max(peaks),
        within_interval=parts.low_bytes <= max(peaks) <= parts.high_bytes,
        ranks=ranks,
        imbalance=imbalance(peaks),
        steps=max(first.stepped),
        skipped_steps=skipped,
        overflow_rate=skipped / len(scaled) if scaled else 0.0,
        loss_scale=_changes(scaled),
        loss=_losses(first.logged),
        tokens=tokens,
        tokens_per_second=tokens / seconds,
        wall_seconds=sum(last - start for start, last in first.spans),
        starts=len(first.spans),
        checkpoint_sha256=checkpoint_sha256,
        versions=_versions(),
        warnings=imbalance_warnings(peaks),
    )


def imbalance(peaks: Sequence[int]) -> float:
    """(largest - smallest) / largest of the ranks' peaks; 0 for one rank."""
    largest = max(peaks)
    return (largest - min(peaks)) / largest if largest > 0 else 0.0


def imbalance_warnings(peaks: Sequence[int]) -> tuple[str, ...]:
    """One warning when the ranks' peaks are further apart than they may be."""
    apart = imbalance(peaks)
    if apart <= MOST_IMBALANCE:
        return ()
    low, high = peaks.index(min(peaks)), peaks.index(max(peaks))
    full, empty = format_bytes(peaks[high]), format_bytes(peaks[low])
    message = f"rank {high} takes {full} at its peak, rank {low} {empty}: {apart:.0%} less"
    return (f"{message}; the fullest rank decides what fits",)


@dataclass
class _Run:
    """What the log of one rank says."""

    device: Device
    before: Peak
    planned: dict[Phase, int]
    spans: list[tuple[float, float]]
    """(start, last step) of every start."""
    stepped: dict[int, Stepped]
    logged: dict[int, Logged]
    scaled: dict[int, Scaled]
    peaks: list[tuple[Peak, dict[Phase, Peak]]]
    """(before, peaks by phase) of every start that measured any."""


def _read(path: Path) -> _Run:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"no such file: {path}", hint="has the run begun?") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    starts = _starts(_events(lines, path))
    if not starts:
        raise InputError(f"{path} does not begin with a start")
    events = [event for _, later in starts for event in later]
    stepped = {event.step: event for event in events if isinstance(event, Stepped)}
    if not stepped:
        raise InputError(f"{path} has no finished step: there is nothing to report")
    last = starts[-1][0]
    return _Run(
        device=last.device,
        before=last.before,
        planned=last.planned,
        spans=[(start.time, _last_time(start, later)) for start, later in starts],
        stepped=stepped,
        logged={event.step: event for event in events if isinstance(event, Logged)},
        scaled={event.step: event for event in events if isinstance(event, Scaled)},
        peaks=[
            (start.before, grown[-1].peaks)
            for start, later in starts
            if (grown := [event for event in later if isinstance(event, Grew)])
        ],
    )


def _events(lines: Sequence[str], path: Path) -> list[Event]:
    """The events of a log. A process that was killed may leave one unfinished line at its end."""
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse(line, f"{path}, line {number}"))
        except InputError:
            following = lines[number] if number < len(lines) else None
            if following is not None and not following.startswith('{"event":"started"'):
                raise
    return found


def _starts(events: Sequence[Event]) -> list[tuple[Started, list[Event]]]:
    starts: list[tuple[Started, list[Event]]] = []
    for event in events:
        if isinstance(event, Started):
            starts.append((event, []))
        elif starts:
            starts[-1][1].append(event)
    return starts


def _last_time(start: Started, later: Sequence[Event]) -> float:
    return max([start.time, *(i.time for i in later if isinstance(i, (Stepped, Ended)))])


def _memory(run: _Run, rank: int, basis: Literal["device", "resident"]) -> RankMemory:
    measured: dict[Phase, tuple[int, Peak]] = {}
    for before, peaks in run.peaks:
        for phase, peak in peaks.items():
            size = on_basis(peak, before, basis)
            if phase not in measured or size > measured[phase][0]:
                measured[phase] = (size, peak)
    phases = tuple(
        PhaseMemory(
            phase=phase,
            planned_bytes=run.planned.get(phase),
            measured_bytes=measured[phase][0],
            peak=measured[phase][1],
        )
        for phase in PHASES
        if phase in measured
    )
    in_step = [size for phase, (size, _) in measured.items() if phase not in ("load", "between")]
    return RankMemory(
        rank=rank,
        before_bytes=run.before.resident_bytes,
        peak_bytes=max(in_step, default=0),
        phases=phases,
    )


def on_basis(peak: Peak, before: Peak, basis: Literal["device", "resident"]) -> int:
    """`peak` as the report counts it, in bytes."""
    if basis == "device":
        assert peak.device_bytes is not None
        return peak.device_bytes
    return max(0, peak.resident_bytes - before.resident_bytes)


def _changes(scaled: Sequence[Scaled]) -> tuple[ScalePoint, ...]:
    ordered = sorted(scaled, key=lambda item: item.step)
    first = [ScalePoint(step=item.step, scale=item.scale) for item in ordered[:1]]
    later = [
        ScalePoint(step=now.step, scale=now.scale)
        for before, now in pairwise(ordered)
        if now.scale != before.scale
    ]
    return (*first, *later)


def _losses(logged: Mapping[int, Logged]) -> tuple[LossPoint, ...]:
    return tuple(
        LossPoint(
            step=step,
            loss=item.loss,
            grad_norm=item.grad_norm,
            learning_rate=item.learning_rate,
        )
        for step, item in sorted(logged.items())
        if item.loss is not None
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
