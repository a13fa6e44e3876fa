"""`ledger.json`: what training, quantizing, evaluating and serving need, beside what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema
from qdeploy.plan.serving import ServingTarget

Place = Literal["GPU", "host", "disk"]
"""GPU: one GPU. host: the memory of one node. disk: where weights, checkpoints and results lie."""

Spread = Mapping[str, tuple[int, int]]
"""Part -> (share that may be missing, share that may come on top), in percent."""


class Need(Schema):
    """What a stage needs in one place, in bytes."""

    parts: dict[str, int]
    """They add up to `total_bytes`."""
    low_bytes: int
    total_bytes: int
    high_bytes: int
    need_bytes: int
    """What must be free: the high end; of training what the plan asks for, since PyTorch's
    allocator gives back what it caches."""
    capacity_bytes: int | None
    """What there is; None: not said."""

    @property
    def fits(self) -> bool | None:
        """Whether that is within what there is; None: not judged."""
        return None if self.capacity_bytes is None else self.need_bytes <= self.capacity_bytes

    @property
    def room(self) -> float | None:
        """Share of what there is that is left free, negative if too little."""
        if self.capacity_bytes is None:
            return None
        return (self.capacity_bytes - self.need_bytes) / max(1, self.capacity_bytes)


class Stage(Schema):
    """One step of the way from a base model to a served one."""

    name: str
    """train, quantize, evaluate, serve bf16 ..."""
    how: str
    """How it runs here: the layout, the number of GPUs."""
    needs: dict[Place, Need]
    """A stage that runs on the CPU has no `GPU`."""
    refusal: str | None = None
    """Why it cannot run at all, however large the machine."""

    @property
    def fits(self) -> bool | None:
        """False: refused, or too large somewhere; None: not judged everywhere."""
        found = [need.fits for need in self.needs.values()]
        if self.refusal is not None or False in found:
            return False
        return None if None in found else True


class Tightest(Schema):
    """The smallest relative room of all that was judged."""

    stage: str
    place: Place
    room: float
    """Share of what there is that is left, negative if too little."""


class Ledger(Artifact):
    """What training, quantizing, evaluating and serving need, beside what there is."""

    SCHEMA: ClassVar[str] = "qdeploy.ledger/1"

    model: str
    parameters: int
    gpu: str
    gpus: int
    """Of one node."""
    nodes: int
    target: ServingTarget
    stages: list[Stage]
    works: bool | None
    """All stages fit, of the served forms at least one; None: nothing is too large, but not
    everything could be judged."""
    tightest: Tightest | None
    verdict: str
    """The same in a sentence."""
    notes: list[str]
    warnings: list[str]

    @property
    def fits(self) -> bool:
        """Nothing is too large, as far as it was judged."""
        return self.works is not False


def needed(parts: dict[str, int], spread: Spread, capacity_bytes: int | None) -> Need:
    """`parts` with their sum and its interval. Empty parts are left out."""
    total = sum(parts.values())
    less = sum(size * spread[name][0] // 100 for name, size in parts.items())
    more = sum(size * spread[name][1] // 100 for name, size in parts.items())
    return Need(
        parts={name: size for name, size in parts.items() if size},
        low_bytes=total - less,
        total_bytes=total,
        high_bytes=total + more,
        need_bytes=total + more,
        capacity_bytes=capacity_bytes,
    )
