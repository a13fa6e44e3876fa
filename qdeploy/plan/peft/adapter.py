"""LLaMA-Adapter: 10 learned prefix tokens in the attention of all blocks but the first two, each
head's share of them scaled by a gate (arXiv 2303.16199; litgpt/adapter.py).
"""

from __future__ import annotations

from qdeploy.models.shape import ModelShape
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Base

BASE: Base = "16bit"
IDLE_BLOCKS = 2
_PREFIX_TOKENS = 10


def adapted(shape: ModelShape, targets: tuple[str, ...]) -> frozenset[str]:
    """No linear has an adapter."""
    del shape, targets
    return frozenset()


def trained(shape: ModelShape) -> frozenset[str]:
    """The gate of the prefix."""
    del shape
    return frozenset({"gating_factor"})


def block_parameters(shape: ModelShape, rank: int, targets: tuple[str, ...], *, moe: bool) -> Count:
    """10 H + A of a block, spread over all blocks though the first two have none."""
    del rank, targets, moe
    each = _PREFIX_TOKENS * shape.hidden_size + shape.heads
    return Count(each * max(0, shape.layers - IDLE_BLOCKS) // shape.layers)


def outside_parameters(shape: ModelShape) -> int:
    """None."""
    del shape
    return 0
