from __future__ import annotations

import pytest

from qdeploy.core.units import GIB
from qdeploy.train.callbacks.events import Peak, Phase
from qdeploy.train.callbacks.fit import Expected, expected_peak, said, verdict
from qdeploy.train.callbacks.memory import _fullest, _larger


def host(**sizes: int) -> dict[Phase, Peak]:
    return {phase: Peak(resident_bytes=size) for phase, size in sizes.items()}  # type: ignore[misc]


def card(allocated: int, reserved: int, device: int) -> Peak:
    return Peak(
        resident_bytes=1,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
    )


def test_states_of_the_first_step_come_on_top_of_both_passes() -> None:
    peaks = host(load=99, forward=30, backward=40, step=45)
    assert expected_peak(peaks, 0) == Expected(45, 45)
    assert expected_peak(peaks, 5) == Expected(45, 45)
    assert expected_peak(peaks, 6) == Expected(46, 46)
    assert expected_peak(peaks, -10) == Expected(45, 45)


def test_the_allocators_reserve_may_take_what_grows() -> None:
    peaks: dict[Phase, Peak] = {
        "forward": card(10, 20, 25),
        "backward": card(10, 12, 17),
        "step": card(15, 20, 25),
    }
    # Beside the reserve the device has 5; forward needs 10 + 8 allocated, or 20 + 8 reserved.
    assert expected_peak(peaks, 8) == Expected(25, 33)
    assert expected_peak(peaks, 20) == Expected(35, 45)


@pytest.mark.parametrize(
    ("capacity", "expected"), [(10, "fits"), (9, "may not fit"), (8, "may not fit"),
                               (7, "does not fit"), (0, "does not fit")],
)  # fmt: skip
def test_verdict(capacity: int, expected: str) -> None:
    assert verdict(Expected(8, 10), capacity) == expected


def test_the_numbers_are_said() -> None:
    line = said(Expected(2 * GIB, 3 * GIB), 1 * GIB, "a GPU", GIB // 2)
    assert line == (
        "memory after the first step: the run will not fit: 2.0 GiB to 3.0 GiB expected of the "
        "1.0 GiB of a GPU (planned 512.0 MiB)"
    )
    assert "the run will fit: 2.0 GiB expected" in said(
        Expected(2 * GIB, 2 * GIB), 2 * GIB, "the node", GIB
    )


def test_the_fullest_node() -> None:
    assert _fullest([1, 2, 3], 1) == 3
    assert _fullest([1, 2, 3, 4], 2) == 7
    assert _fullest([5, 2, 3], 2) == 7


def test_larger_takes_each_number_by_itself() -> None:
    assert _larger(
        Peak(resident_bytes=5, allocated_bytes=None, reserved_bytes=2),
        Peak(resident_bytes=4, allocated_bytes=3, reserved_bytes=None),
    ) == Peak(resident_bytes=5, allocated_bytes=3, reserved_bytes=2)
