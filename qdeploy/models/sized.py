"""A shape from sizes alone: what is not given follows LLaMA's proportions.

LLaMA (arXiv 2302.13971, table 2): 128 hidden units a layer, heads of 128, an MLP of 8/3 of the
hidden size rounded up to a multiple of 256, 32000 tokens, untied embeddings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from decimal import Decimal
from math import gcd, lcm

from qdeploy.core.errors import InputError
from qdeploy.models.config import model_shape
from qdeploy.models.shape import ModelShape

_HIDDEN_PER_LAYER = 128
_HEAD_DIM = 128
_VOCABULARY = 32000
_POSITIONS = 4096
# Sizes that differ more from the parameters they are given with belong to another model.
_TOLERANCE = 0.05
# Far above every model; keeps the search for the nearest depth short.
_MOST = 10**14

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([bm]?)", re.IGNORECASE)
_UNITS = {"": 1, "m": 10**6, "b": 10**9}


@dataclass(frozen=True)
class Sizes:
    """Sizes that a user gives; None: not given."""

    parameters: int | None = None
    hidden_size: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    max_positions: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value <= _MOST):
                name = field.name.replace("_", " ")
                raise InputError(
                    f"{name} must be a whole number from 1 to {_MOST:,}, found {value!r}"
                )


def parse_parameters(text: str) -> int:
    """`7B`, `350M` or a bare number as a count of parameters. Raises InputError for others."""
    found = _COUNT.fullmatch(text.strip())
    count = 0 if found is None else int(Decimal(found[1]) * _UNITS[found[2].lower()])
    if count < 1:
        raise InputError(
            f"{text!r} is no count of parameters", hint="write 7B, 350M or the number itself"
        )
    return count


def shape_of_sizes(sizes: Sizes, name: str) -> ModelShape:
    """A LLaMA-like shape with `sizes`; of several, the one nearest to the given parameters.

    Raises InputError when sizes do not divide, or make a model whose parameters differ by more
    than 5 % from those given beside them.
    """
    if sizes.parameters is None and sizes.hidden_size is None and sizes.layers is None:
        raise InputError(
            "these sizes say nothing about how large the model is",
            hint="give the parameters, or the hidden size, or the layers",
        )
    shape = _nearest(sizes, name)
    given = sizes.parameters
    alone = sizes == Sizes(parameters=given)
    if given is not None and not alone and abs(shape.parameters - given) > _TOLERANCE * given:
        raise InputError(
            f"{given:,} parameters do not go with the other sizes, which make a model of "
            f"{shape.parameters:,} ({shape.parameters / given - 1:+.0%})",
            hint=f"hidden size {shape.hidden_size}, {shape.layers} layers, {shape.heads} heads, "
            f"{shape.kv_heads} key-value heads, MLP {shape.intermediate_size}, vocabulary "
            f"{shape.vocab_size}: give more of them, or leave the parameters out",
        )
    return shape


def _nearest(sizes: Sizes, name: str) -> ModelShape:
    wanted, hidden = sizes.parameters, sizes.hidden_size
    step = lcm(_HIDDEN_PER_LAYER, sizes.heads or 1)
    if hidden is None and wanted is None:
        least = (sizes.layers or 1) * _HIDDEN_PER_LAYER
        return _llama_like(sizes, name, -(-least // step) * step)
    if hidden is None:
        below = _llama_like(sizes, name, step)
        while True:
            above = _llama_like(sizes, name, below.hidden_size + step)
            if above.parameters > (wanted or 0):
                return _nearer(below, above, wanted or 0)
            below = above
    if sizes.layers is not None or wanted is None:
        return _llama_like(sizes, name, hidden)
    one = _llama_like(sizes, name, hidden, layers=1)
    rest = wanted - one.parameters
    return _llama_like(sizes, name, hidden, layers=1 + max(0, round(rest / one.block_parameters)))


def _nearer(below: ModelShape, above: ModelShape, wanted: int) -> ModelShape:
    return above if above.parameters - wanted < wanted - below.parameters else below


def _llama_like(sizes: Sizes, name: str, hidden: int, *, layers: int | None = None) -> ModelShape:
    head = sizes.head_dim or _head_dim(sizes, hidden)
    heads = sizes.heads or max(1, hidden // head)
    return model_shape(
        {"_name": name, "model_type": "llama"},
        layers=sizes.layers or layers or max(1, round(hidden / _HIDDEN_PER_LAYER)),
        hidden_size=hidden,
        heads=heads,
        kv_heads=sizes.kv_heads or heads,
        head_dim=head,
        intermediate_size=sizes.intermediate_size or -(-8 * hidden // 3 // 256) * 256,
        vocab_size=sizes.vocab_size or _VOCABULARY,
        max_positions=sizes.max_positions or _POSITIONS,
    )


def _head_dim(sizes: Sizes, hidden: int) -> int:
    """The head's width: hidden size over heads, or 128 or the largest power of two that fits."""
    if sizes.heads is None:
        return gcd(hidden, _HEAD_DIM)
    if hidden % sizes.heads:
        raise InputError(f"hidden size {hidden} does not divide into {sizes.heads} heads")
    return hidden // sizes.heads
