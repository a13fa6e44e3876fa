"""LLaMA-Adapter V2: the first version's prefix, and a bias and a scale for each output of every
linear, head included; norms are trained (arXiv 2304.15010; litgpt/adapter_v2.py).
"""

from __future__ import annotations

from qdeploy.models.shape import ModelShape
from qdeploy.plan.peft import adapter
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Base
from qdeploy.plan.saved import NORMS

BASE: Base = "16bit"
IDLE_BLOCKS = 0


def adapted(shape: ModelShape, targets: tuple[str, ...]) -> frozenset[str]:
    """No linear has an adapter of the kind that LoRA has."""
    return adapter.adapted(shape, targets)


def trained(shape: ModelShape) -> frozenset[str]:
    """The prefix's gate, the outputs' scales, the norms."""
    return adapter.trained(shape) | {"adapter_scale", *NORMS}


def block_parameters(shape: ModelShape, rank: int, targets: tuple[str, ...], *, moe: bool) -> Count:
    """The first version's, two for each output of a linear, and the norms."""
    first = adapter.block_parameters(shape, rank, targets, moe=moe)
    linears = shape.shared_expert_linears if moe else shape.mlp_linears
    outputs = sum(linear.out_features for linear in [*shape.attention_linears, *linears])
    return first.plus(Count(2 * outputs + shape.norms_per_block * shape.norm_parameters))


def outside_parameters(shape: ModelShape) -> int:
    """Bias and scale of the head's outputs, and the final norm."""
    return 2 * shape.vocab_size + shape.norm_parameters
