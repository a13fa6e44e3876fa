"""Parameter-efficient methods, one file each; its name is its name on the command line.

Each file defines what `Peft` says.
"""

from __future__ import annotations

from typing import Protocol, cast

from qdeploy.core.plugins import load_plugin
from qdeploy.models.shape import ModelShape
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Base

_PACKAGE = "qdeploy.plan.peft"


class Peft(Protocol):
    """A parameter-efficient method."""

    BASE: Base
    """How it stores the frozen weights unless asked otherwise."""
    IDLE_BLOCKS: int
    """The first blocks that have nothing to train: nothing is kept of them."""

    def adapted(self, shape: ModelShape, targets: tuple[str, ...]) -> frozenset[str]:
        """Names of the linears that get an adapter. Raises InputError for an unknown one."""

    def trained(self, shape: ModelShape) -> frozenset[str]:
        """Names of what it trains in a block beside adapters of linears, as `BlockRun` has it."""

    def block_parameters(
        self, shape: ModelShape, rank: int, targets: tuple[str, ...], *, moe: bool
    ) -> Count:
        """Trained parameters that it adds to one block. Raises InputError for a rank too high."""

    def outside_parameters(self, shape: ModelShape) -> int:
        """Trained parameters that it adds outside the blocks."""


def find_peft(name: str) -> Peft:
    """The method called `name`. Raises UnknownNameError."""
    return cast("Peft", load_plugin(_PACKAGE, name, "peft"))
