"""How finely numbers are stored: the part of a scheme that file formats must express."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import model_validator

from qdeploy.core.schema import Schema

GroupSize = Literal[32, 64, 128]
GROUP_SIZES: tuple[int, ...] = get_args(GroupSize)
"""Input features that share a scale, as the INT4 kernels of servers take them."""


class WeightPrecision(Schema):
    """Integers that stand for the weights of a linear layer."""

    bits: Literal[4, 8]
    granularity: Literal["channel", "group"]
    """channel: one scale for each output channel; group: one for each `group_size` input features
    of an output channel."""
    group_size: GroupSize | None = None
    """Only with granularity group."""
    symmetric: Literal[True]

    @model_validator(mode="after")
    def _size_of_groups(self) -> WeightPrecision:
        if (self.granularity == "group") != (self.group_size is not None):
            raise ValueError("group_size goes with granularity group, and only with it")
        return self

    def __str__(self) -> str:
        return f"w{self.bits}-{self.granularity}{self.group_size or ''}-sym"

    def undivided(self, in_features: Mapping[str, int]) -> str | None:
        """What is wrong with layers (name -> input features) that the group size does not divide.

        Layers that differ by the number of their block only are named once, with a star.
        """
        if self.group_size is None:
            return None
        found = {
            f"{_any_block(name)} ({size})": size
            for name, size in in_features.items()
            if size % self.group_size
        }
        if not found:
            return None
        fitting = [
            str(size)
            for size in GROUP_SIZES
            if not any(features % size for features in in_features.values())
        ]
        would = f"{' and '.join(fitting)} would do" if fitting else "none of the others does either"
        return (
            f"group size {self.group_size} does not divide the input features of "
            f"{', '.join(sorted(found))}; of {', '.join(map(str, GROUP_SIZES))}, {would}"
        )


class ActivationPrecision(Schema):
    """Integers that stand for the input of a linear layer."""

    bits: Literal[8]
    granularity: Literal["token"]
    """token: one scale for each token."""
    symmetric: Literal[True]
    dynamic: Literal[True]
    """Scales are computed while the model runs, not from calibration."""

    def __str__(self) -> str:
        return f"a{self.bits}-{self.granularity}"


def _any_block(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
