"""Sizes of well-known models by name, without a network.

A file `shapes/NAME.toml` is a model called NAME: `aliases` (hub ids), `source`, and under
`[config]` the keys of its config.json that say its sizes, which its family reads. A bare size such
as `7B` is a model of exactly that many parameters with LLaMA's proportions.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass

from qdeploy.core.artifacts import sha256_text
from qdeploy.core.errors import InputError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.toml import read_toml
from qdeploy.models.family import shape_of
from qdeploy.models.shape import ModelShape
from qdeploy.models.sized import Sizes, parse_parameters, shape_of_sizes

_PACKAGE = "qdeploy.models.shapes"


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
    """The shape called `name`; None for another.

    A name is a shipped one, else a hub id with or without its owner, else a bare size. Case is
    ignored.
    """
    wanted = name.strip().casefold()
    found = wanted if wanted in shipped_shape_names() else _with_alias(wanted)
    if found is not None:
        data, digest = read_toml(_PACKAGE, found)
        shape = shape_of(data["config"], found)
        return KnownShape(shape, shape.parameters, digest)
    if not wanted.endswith(("b", "m")):
        return None
    try:
        return shape_by_sizes(Sizes(parameters=parse_parameters(wanted)), name.strip())
    except InputError:
        return None


def shape_by_sizes(sizes: Sizes, name: str | None = None) -> KnownShape:
    """A model with `sizes`; what is not given follows LLaMA's proportions.

    Its parameters are those given, else those of the shape. Raises InputError for sizes that
    contradict each other.
    """
    shape = shape_of_sizes(sizes, name or "given sizes")
    digest = sha256_text(shape.model_dump_json())
    return KnownShape(shape, sizes.parameters or shape.parameters, digest)


def _with_alias(wanted: str) -> str | None:
    """The shape that has the alias `wanted`. Only files that hold the text are parsed."""
    folder = importlib.resources.files(_PACKAGE)
    for known in shipped_shape_names():
        if f'{wanted}"' in (folder / f"{known}.toml").read_text(encoding="utf-8").casefold():
            aliases = [alias.casefold() for alias in read_toml(_PACKAGE, known)[0]["aliases"]]
            if wanted in aliases or wanted in [alias.split("/")[-1] for alias in aliases]:
                return known
    return None
