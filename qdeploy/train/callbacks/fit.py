"""Whether a run will fit, from its first step.

Adam's states are made in the first step. From the second one on they are there in the forward and
backward pass too, so the peak of the run is not that of the first step. The longest samples come
first, so nothing else grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qdeploy.core.units import format_bytes
from qdeploy.train.callbacks.events import Peak, Phase

_BEFORE_STATES: tuple[Phase, ...] = ("forward", "backward")

Verdict = Literal["fits", "may not fit", "does not fit"]


@dataclass(frozen=True)
class Expected:
    """The peak of the steps to come, in bytes."""

    low_bytes: int
    """If the allocator's reserve takes all that grows."""
    high_bytes: int
    """If it takes nothing of it."""


def expected_peak(peaks: Mapping[Phase, Peak], grown_bytes: int) -> Expected:
    """What the steps after the first one need.

    `peaks` are those of the first step, `grown_bytes` what is allocated after it and was not before
    it. On a GPU the bytes are those of the device, else of the process.
    """
    low = high = 0
    for phase in ("forward", "backward", "step"):
        peak = peaks[phase]
        more = max(0, grown_bytes) if phase in _BEFORE_STATES else 0
        if peak.device_bytes is None:
            low, high = max(low, peak.resident_bytes + more), max(high, peak.resident_bytes + more)
            continue
        assert peak.allocated_bytes is not None
        assert peak.reserved_bytes is not None
        beside = peak.device_bytes - peak.reserved_bytes
        low = max(low, peak.allocated_bytes + more + beside, peak.device_bytes)
        high = max(high, peak.device_bytes + more)
    return Expected(low, high)


def verdict(expected: Expected, capacity_bytes: int) -> Verdict:
    """Whether `expected` is within `capacity_bytes`."""
    if expected.high_bytes <= capacity_bytes:
        return "fits"
    return "may not fit" if expected.low_bytes <= capacity_bytes else "does not fit"


def said(expected: Expected, capacity_bytes: int, where: str, planned_bytes: int) -> str:
    """The verdict as a line for a person; `where` says what has the capacity."""
    low, high = format_bytes(expected.low_bytes), format_bytes(expected.high_bytes)
    span = low if low == high else f"{low} to {high}"
    words = {
        "fits": "the run will fit",
        "may not fit": "the run may not fit",
        "does not fit": "the run will not fit",
    }[verdict(expected, capacity_bytes)]
    return (
        f"memory after the first step: {words}: {span} expected of the "
        f"{format_bytes(capacity_bytes)} of {where} (planned {format_bytes(planned_bytes)})"
    )
