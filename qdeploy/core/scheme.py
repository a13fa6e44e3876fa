"""Quantization schemes: one YAML file each, its name is the scheme's name (`--scheme NAME`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from qdeploy.core.errors import UnknownNameError
from qdeploy.core.precision import ActivationPrecision, WeightPrecision
from qdeploy.core.schema import Schema, read_yaml
from qdeploy.core.shipped import shipped

FOLDER = "recipes/quantize"


class Scheme(Schema):
    """What is quantized, how finely, by which algorithms, into which file format."""

    schema_id: Literal["qdeploy.scheme/1"] = Field(alias="schema")
    name: str = ""
    """Set from the file's name."""
    description: str
    weights: WeightPrecision
    activations: ActivationPrecision | None = None
    """None: left as they are."""
    algorithms: list[str] = Field(min_length=1)
    """Names of files in `qdeploy/quant/algorithms`, in the order in which they run on a block."""
    format: str
    """Name of a file in `qdeploy/formats`."""
    ignore: tuple[str, ...] = ("lm_head",)
    """Linear layers left alone: module names, or `re:` and a regular expression."""

    @property
    def precision(self) -> str:
        """Weights and activations in short: 'w8-channel-sym a8-token', 'w4-group64-sym a16'."""
        return f"{self.weights} {self.activations or 'a16'}"

    def ignores(self, module: str) -> bool:
        """Whether the linear layer `module` is left alone."""
        return any(
            re.match(pattern[3:], module) is not None
            if pattern.startswith("re:")
            else pattern == module
            for pattern in self.ignore
        )


def scheme_names() -> list[str]:
    """The names of all shipped schemes, sorted."""
    return sorted(path.stem for path in shipped(FOLDER).glob("*.yaml"))


def load_scheme(name: str) -> Scheme:
    """The shipped scheme `name`, or the one in the YAML file that `name` is the path of.

    Raises UnknownNameError with the nearest name, InputError for a malformed file.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in scheme_names():
            raise UnknownNameError("scheme", name, scheme_names())
        path = shipped(FOLDER) / f"{name}.yaml"
    return read_yaml(path, Scheme).model_copy(update={"name": path.stem})
