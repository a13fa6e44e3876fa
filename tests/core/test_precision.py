"""Layers that a group size does not divide."""

from typing import Any

import pytest

from qdeploy.core.precision import WeightPrecision


def groups_of(size: Any) -> WeightPrecision:
    return WeightPrecision(bits=4, granularity="group", group_size=size, symmetric=True)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_sizes_that_divide_are_fine(size: int) -> None:
    assert groups_of(size).undivided({"a": 128, "b": 256}) is None
    assert groups_of(size).undivided({}) is None


def test_channels_take_any_size() -> None:
    channels = WeightPrecision(bits=8, granularity="channel", symmetric=True)
    assert channels.undivided({"a": 1}) is None


def test_all_layers_are_named_and_the_sizes_that_would_do() -> None:
    found = groups_of(128).undivided(
        {"layers.0.up": 96, "layers.1.up": 96, "layers.10.up": 64, "layers.0.down": 128}
    )
    assert found == (
        "group size 128 does not divide the input features of layers.*.up (64), "
        "layers.*.up (96); of 32, 64, 128, 32 would do"
    )


def test_no_size_would_do() -> None:
    found = groups_of(32).undivided({"up": 48, "down": 64})
    assert found is not None
    assert found.endswith("of up (48); of 32, 64, 128, none of the others does either")
