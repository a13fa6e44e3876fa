"""The part of a model that one GPU works on: its pipeline stage, its tensor and expert share.

Tensor parallelism divides the linears of a block, the embedding and the head (over the
vocabulary); norms and routers are whole on every rank. A pipeline stage holds ceil(L / p) blocks,
the first one the embedding, the last one the final norm and the head, and a copy of a tied
embedding (megatron/training/theoretical_memory_usage.py). Expert parallelism divides the experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from qdeploy.models.linear import Linear, weights_and_biases
from qdeploy.models.shape import ModelShape

Stage = Literal["only", "first", "last"]


class Count(NamedTuple):
    """Parameters, those of routed experts apart: they are sharded over other groups of GPUs."""

    dense: int
    experts: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts

    def plus(self, other: Count) -> Count:
        """The sum of both."""
        return Count(self.dense + other.dense, self.experts + other.experts)

    def times(self, factor: int) -> Count:
        """`factor` times as many."""
        return Count(self.dense * factor, self.experts * factor)


@dataclass(frozen=True)
class Rank:
    """Degrees of model parallelism, and the stage of the pipeline."""

    shape: ModelShape
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    stage: Stage = "only"
    surplus: int = 0
    """Parameters that the model has beyond what its sizes give (a model of exactly 7B)."""

    @cached_property
    def blocks(self) -> tuple[int, int]:
        """(blocks with a dense MLP, blocks with experts) of this stage."""
        size = -(-self.shape.layers // self.pipeline)
        start = self.shape.layers - size if self.stage == "last" else 0
        moe = sum(self.shape.has_experts(layer) for layer in range(start, start + size))
        return size - moe, moe

    @property
    def kinds(self) -> list[tuple[bool, int]]:
        """(whether it has experts, how many there are) of each kind of block of this stage."""
        return [
            (moe, count) for moe, count in zip((False, True), self.blocks, strict=True) if count
        ]

    @property
    def linears(self) -> list[tuple[Linear, int]]:
        """Linears of the blocks of this stage, and how often each is there on this rank; with
        tensor parallelism whole, though a rank holds only a part of each."""
        shape, (dense, moe) = self.shape, self.blocks
        experts = moe * -(-shape.experts // self.expert)
        found = [
            *((linear, dense + moe) for linear in shape.attention_linears),
            *((linear, dense) for linear in shape.mlp_linears),
            *((linear, moe) for linear in shape.shared_expert_linears),
            *((linear, experts) for linear in shape.expert_linears),
        ]
        return [(linear, count) for linear, count in found if count]

    @property
    def linear_weights(self) -> int:
        """Weights of `linears`."""
        return sum(count * linear.weights for linear, count in self.linears)

    @property
    def embedding(self) -> int:
        """Parameters of the embeddings on this rank."""
        if self.stage == "last":
            return 0
        return -(-self.shape.embedding_parameters // self.tensor)

    @property
    def head(self) -> int:
        """Parameters of the head on this rank, a last stage's copy of a tied one included."""
        if self.stage == "first":
            return 0
        rows = self.shape.head_parameters
        if self.stage == "last" and self.shape.tied_embeddings:
            rows += self.shape.vocab_size * self.shape.hidden_size
        return -(-rows // self.tensor)

    def block(self, *, moe: bool) -> Count:
        """Parameters of one block."""
        shape = self.shape
        if not moe:
            return Count(self._divided(shape.dense_block_parameters, self._dense_linears()))
        experts = shape.experts * shape.expert_parameters
        rest = self._divided(shape.moe_block_parameters - experts, self._shared_linears())
        return Count(rest, -(-experts // (self.expert * self.tensor)))

    @property
    def largest_block(self) -> int:
        """Parameters of the largest block of this stage."""
        return max(self.block(moe=moe).total for moe, _ in self.kinds)

    @property
    def inside(self) -> Count:
        """Parameters of all blocks of this stage."""
        return self._inside(leaving_out=0)

    @property
    def matrices(self) -> Count:
        """Parameters of all blocks but their norms."""
        return self._inside(leaving_out=self.shape.norms_per_block * self.shape.norm_parameters)

    @property
    def parameters(self) -> Count:
        """All parameters on this rank."""
        shape = self.shape
        dense_layers = shape.layers - shape.moe_layers
        blocks = dense_layers * shape.dense_block_parameters
        blocks += shape.moe_layers * shape.moe_block_parameters
        outside = shape.parameters - blocks - shape.embedding_parameters - shape.head_parameters
        outside += -(-self.surplus // (self.tensor * self.pipeline))
        return self.inside.plus(Count(self.embedding + self.head + outside))

    def _inside(self, *, leaving_out: int) -> Count:
        total = Count(0)
        for moe, count in self.kinds:
            total = total.plus(self.block(moe=moe).plus(Count(-leaving_out)).times(count))
        return total

    def _divided(self, parameters: int, linears: int) -> int:
        return parameters - linears + -(-linears // self.tensor)

    def _dense_linears(self) -> int:
        return weights_and_biases([*self.shape.attention_linears, *self.shape.mlp_linears])

    def _shared_linears(self) -> int:
        linears = [*self.shape.attention_linears, *self.shape.shared_expert_linears]
        return weights_and_biases(linears)
