"""LoRA: two matrices of rank r beside linear layers of the blocks, r (out + in) parameters each
(arXiv 2106.09685).

Routed experts get adapters only where they are asked for by name: transformers keeps all experts
of a block in one tensor, which is no linear layer, and `all-linear` of peft passes it by.
"""

from __future__ import annotations

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.models.linear import Linear
from qdeploy.models.shape import ModelShape
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Base

BASE: Base = "16bit"
IDLE_BLOCKS = 0


def adapted(shape: ModelShape, targets: tuple[str, ...]) -> frozenset[str]:
    """Names of the linears with an adapter. Raises UnknownNameError for one that is not there."""
    names = {linear.name for linear in shape.plain_linears}
    known = names | {linear.name for linear in shape.expert_linears}
    for target in targets:
        if target not in known:
            raise UnknownNameError(f"linear of {shape.name}", target, sorted(known))
    return frozenset(targets or names)


def trained(shape: ModelShape) -> frozenset[str]:
    """Nothing."""
    del shape
    return frozenset()


def block_parameters(shape: ModelShape, rank: int, targets: tuple[str, ...], *, moe: bool) -> Count:
    """Parameters of the adapters of one block.

    Raises InputError where the rank is more than a linear's smaller side, UnknownNameError for a
    target that is not there.
    """
    wanted = adapted(shape, targets)
    linears = shape.shared_expert_linears if moe else shape.mlp_linears
    dense = _adapters([*shape.attention_linears, *linears], rank, wanted)
    asked = frozenset(targets)
    experts = shape.experts * _adapters(shape.expert_linears, rank, asked) if moe else 0
    return Count(dense, experts)


def outside_parameters(shape: ModelShape) -> int:
    """None."""
    del shape
    return 0


def _adapters(linears: list[Linear], rank: int, wanted: frozenset[str]) -> int:
    total = 0
    for linear in linears:
        if linear.name not in wanted:
            continue
        smaller = min(linear.out_features, linear.in_features)
        if rank > smaller:
            raise InputError(
                f"LoRA rank {rank} is more than {linear.name} has dimensions: "
                f"{linear.out_features} x {linear.in_features}",
                hint=f"use --lora-rank {smaller} or less",
            )
        total += rank * (linear.out_features + linear.in_features)
    return total
