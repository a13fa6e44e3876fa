"""Where the states of a run lie: a strategy, an offload, checkpointing.

A file `strategies/NAME.toml` is a strategy called NAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.schema import Schema, validate
from qdeploy.core.toml import read_toml
from qdeploy.plan.request import Offload

_PACKAGE = "qdeploy.plan.strategies"

Sharded = Literal["states", "gradients", "weights"]


class Strategy(Schema):
    """What is sharded over the GPUs, and by which framework."""

    name: str
    summary: str
    engine: Literal["torch", "deepspeed"]
    shards: frozenset[Sharded]
    """`states` are the FP32 master weights and the optimizer's states."""
    offloads: tuple[Offload, ...]
    gpus: Literal["one", "several", "any"]

    def allows(self, gpus: int) -> bool:
        """Whether the strategy runs on `gpus` GPUs."""
        return {"one": gpus == 1, "several": gpus > 1, "any": True}[self.gpus]


@dataclass(frozen=True)
class Layout:
    """One strategy with its offload and checkpointing."""

    strategy: Strategy
    offload: Offload
    checkpointing: bool

    @property
    def casts_weights(self) -> bool:
        """Autocast over unsharded weights, which PyTorch does without FSDP."""
        return self.strategy.engine == "torch" and "weights" not in self.strategy.shards

    def shard(self, what: Sharded, count: int, world: int) -> int:
        """How much of `count` one of `world` GPUs holds, rounded up."""
        return -(-count // world) if what in self.strategy.shards else count


def strategy_names() -> list[str]:
    """The names of all strategies, sorted."""
    return plugin_names(_PACKAGE, ".toml")


def find_strategy(name: str) -> Strategy:
    """The strategy called `name`. Raises UnknownNameError."""
    if name not in strategy_names():
        raise UnknownNameError("strategy", name, strategy_names())
    return validate(Strategy, {"name": name, **read_toml(_PACKAGE, name)[0]}, name)


def layouts(
    strategies: list[Strategy],
    *,
    world: int,
    offload: Offload | None,
    checkpointing: bool | None,
) -> list[Layout]:
    """All layouts of `strategies` on `world` GPUs, in order.

    Raises InputError when none is left: a wrong GPU count, or an offload no strategy has.
    """
    ways = [True, False] if checkpointing is None else [checkpointing]
    found = [
        Layout(strategy, place, way)
        for strategy in strategies
        if strategy.allows(world)
        for place in strategy.offloads
        if place == (offload or place) and (place != "nvme" or offload == "nvme")
        for way in ways
    ]
    if not found:
        names = ", ".join(strategy.name for strategy in strategies)
        raise InputError(
            f"{names} cannot run on {world} GPU(s) with offload {offload or 'none'}",
            hint="none takes one GPU, ddp and fsdp several; optimizer offload needs zero2 or "
            "zero3, all and nvme need zero3",
        )
    return found
