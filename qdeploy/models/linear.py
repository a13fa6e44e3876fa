"""A linear layer as sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Linear(NamedTuple):
    """A linear layer: the last part of its module name in transformers, and its sizes."""

    name: str
    out_features: int
    in_features: int
    bias: bool

    @property
    def weights(self) -> int:
        """Elements of the weight matrix."""
        return self.out_features * self.in_features


def named(linears: list[Linear], names: Sequence[str]) -> list[Linear]:
    """The linears called `names` instead, in order; as they are where `names` is empty."""
    if not names:
        return linears
    return [linear._replace(name=name) for linear, name in zip(linears, names, strict=True)]


def weights_and_biases(linears: Sequence[Linear]) -> int:
    """Parameters of the linears."""
    return sum(linear.out_features * (linear.in_features + int(linear.bias)) for linear in linears)


def mlp(hidden: int, width: int, *, gated: bool, fused: bool, bias: bool) -> list[Linear]:
    """The linears of an MLP of `width`, named as LLaMA's, or gate and up fused; none of width 0."""
    if width == 0:
        return []
    inner = {"up_proj": width}
    if gated:
        inner = {"gate_up_proj": 2 * width} if fused else {"gate_proj": width, **inner}
    first = [Linear(name, out, hidden, bias) for name, out in inner.items()]
    return [*first, Linear("down_proj", hidden, width, bias)]
