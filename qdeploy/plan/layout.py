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
from qdeploy.plan.job import Job
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Offload, PlanRequest

_PACKAGE = "qdeploy.plan.strategies"

Sharded = Literal["states", "gradients", "weights"]


class Strategy(Schema):
    """What is sharded over the GPUs, and by which framework."""

    name: str
    summary: str
    engine: Literal["torch", "fsdp", "deepspeed"]
    shards: frozenset[Sharded]
    """`states` are the FP32 master weights and the optimizer's states."""
    offloads: tuple[Offload, ...]
    gpus: Literal["one", "several", "any"]
    offered: bool = True
    """Planned without being asked for by name."""
    slack_percent: int = 20
    """What PyTorch's allocator holds beyond what is allocated, as a share of what comes and goes;
    see `terms.framework`."""

    def allows(self, request: PlanRequest) -> bool:
        """Whether the strategy runs on the GPUs that hold the same weights."""
        ranks = request.data_parallel * request.context_parallel
        allowed = {"one": request.data_parallel == 1, "several": ranks > 1, "any": True}
        return allowed[self.gpus]


@dataclass(frozen=True)
class Layout:
    """One strategy with its offload and checkpointing."""

    strategy: Strategy
    offload: Offload
    checkpointing: bool

    @property
    def casts_weights(self) -> bool:
        """Autocast over unsharded weights, which PyTorch does without FSDP."""
        return self.strategy.engine == "torch"

    @property
    def deepspeed(self) -> bool:
        """Whether DeepSpeed holds the states."""
        return self.strategy.engine == "deepspeed"

    @property
    def fsdp(self) -> bool:
        """Whether PyTorch's FSDP holds the states."""
        return self.strategy.engine == "fsdp"

    @property
    def shards_weights(self) -> bool:
        """Whether weights are gathered for each use."""
        return "weights" in self.strategy.shards

    def shard(self, what: Sharded, count: Count, job: Job) -> int:
        """How much of `count` one GPU holds."""
        return job.divided(count) if what in self.strategy.shards else count.total


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
    request: PlanRequest,
) -> list[Layout]:
    """All layouts of `strategies` that `request` asks for, in order.

    Raises InputError when none is left: a wrong GPU count, or an offload no strategy has.
    """
    offload, asked = request.offload, request.checkpointing
    ways = [True, False] if asked is None else [asked]
    found = [
        Layout(strategy, place, way)
        for strategy in strategies
        if strategy.allows(request)
        for place in strategy.offloads
        if place == (offload or place) and (place != "nvme" or offload == "nvme")
        for way in ways
    ]
    if not found:
        names = ", ".join(strategy.name for strategy in strategies)
        raise InputError(
            f"{names} cannot run on {request.world} GPU(s) with offload {offload or 'none'}",
            hint="none takes one GPU (or one model-parallel group), ddp and fsdp several; "
            "optimizer offload needs zero2 or zero3, all and nvme need zero3",
        )
    return found
