"""How finely numbers are stored: the part of a scheme that file formats must express."""

from __future__ import annotations

from typing import Literal

from qdeploy.core.schema import Schema


class WeightPrecision(Schema):
    """Integers that stand for the weights of a linear layer."""

    bits: Literal[8]
    granularity: Literal["channel"]
    """channel: one scale for each output channel."""
    symmetric: Literal[True]

    def __str__(self) -> str:
        return f"w{self.bits}-{self.granularity}-sym"


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
