"""Sizes of well-known models by name, without a network.

A file `shapes/NAME.toml` is a model called NAME; its `aliases` are hub ids. A bare size such as
`7B` is a model of exactly that many parameters with LLaMA's proportions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from qdeploy.core.artifacts import sha256_text
from qdeploy.core.plugins import plugin_names
from qdeploy.core.schema import validate
from qdeploy.core.toml import read_toml
from qdeploy.models.shape import ModelShape

_PACKAGE = "qdeploy.models.shapes"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])", re.IGNORECASE)

# LLaMA's proportions (arXiv 2302.13971, table 2): 128 hidden units a layer, an MLP of 8/3 H.
_HIDDEN_PER_LAYER = 128
_HEAD_DIM = 128
_VOCABULARY = 32000


@dataclass(frozen=True)
class KnownShape:
    """A shape found by name, its parameters, and the sha256 of what it was found in."""

    shape: ModelShape
    parameters: int
    digest: str


def shipped_shape_names() -> list[str]:
    """The names of all shipped shapes, sorted."""
    return plugin_names(_PACKAGE, ".toml")


def shipped_shape(name: str) -> KnownShape | None:
    """The shape called `name`: a shipped name, a hub id, or a bare size; None for another."""
    wanted = name.strip().casefold()
    for known in shipped_shape_names():
        data, digest = read_toml(_PACKAGE, known)
        if wanted in (known.casefold(), *(alias.casefold() for alias in data["aliases"])):
            shape = validate(ModelShape, {"name": known, **data["shape"]}, f"shapes/{known}.toml")
            return KnownShape(shape, shape.parameters, digest)
    size = _SIZE.fullmatch(wanted)
    return None if size is None else _by_size(name.strip(), size)


def _by_size(name: str, size: re.Match[str]) -> KnownShape | None:
    parameters = int(Decimal(size[1]) * (10**9 if size[2] == "b" else 10**6))
    if parameters <= 0:
        return None
    layers = _nearest_layers(parameters)
    shape = _llama_like(name, layers)
    return KnownShape(shape, parameters, sha256_text(shape.model_dump_json()))


def _nearest_layers(parameters: int) -> int:
    """The depth at which a LLaMA-like model comes nearest to `parameters`."""
    layers = 1
    while _llama_like("", layers + 1).parameters <= parameters:
        layers += 1
    below, above = _llama_like("", layers), _llama_like("", layers + 1)
    nearer_above = above.parameters - parameters < parameters - below.parameters
    return layers + 1 if nearer_above else layers


def _llama_like(name: str, layers: int) -> ModelShape:
    hidden = layers * _HIDDEN_PER_LAYER
    return ModelShape(
        name=name,
        family="llama",
        layers=layers,
        hidden_size=hidden,
        heads=hidden // _HEAD_DIM,
        kv_heads=hidden // _HEAD_DIM,
        head_dim=_HEAD_DIM,
        intermediate_size=-(-8 * hidden // 3 // 256) * 256,
        vocab_size=_VOCABULARY,
        max_positions=4096,
    )
