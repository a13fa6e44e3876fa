"""What a model family is, as data; one file a family in `qdeploy/models/families`.

A family file's name is the family's `model_type` in config.json. It defines
`FAMILY: Family` (the block structure) and `shape(config) -> ModelShape` (the sizes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.core.plugins import load_plugin, plugin_names
from qdeploy.models.shape import ModelShape

_PACKAGE = "qdeploy.models.families"
# Keys under which configs describe a part that reads pictures or sound (`visual`: Qwen-VL).
_OTHER_SENSES = ("vision_config", "audio_config", "visual")


@dataclass(frozen=True)
class SmoothingPair:
    """Linears that read the same activation, and the module whose output channels feed them.

    Dividing the output of `source` by a vector s and multiplying the input columns of all
    `linears` by s leaves the block's function unchanged (SmoothQuant, arXiv 2211.10438, eq. 3).
    """

    source: str
    linears: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Where the parts of a decoder model lie; paths are module names in transformers."""

    blocks: str
    """Path of the list of decoder blocks."""
    linears: tuple[str, ...]
    """Linear layers that every block has, in the order in which they run; experts are none."""
    pairs: tuple[SmoothingPair, ...]
    norm_offset: float = 0.0
    """A norm multiplies by `norm_offset + weight` (1 for Gemma)."""
    transposed: bool = False
    """Linears are transformers' Conv1D: weights lie [in_features, out_features]."""


def family_of(config: dict[str, Any]) -> Family:
    """The family of a parsed config.json.

    Raises UnknownNameError for an unknown model type, InputError for another kind of model.
    """
    refuse_other_kinds(config)
    module = load_plugin(_PACKAGE, model_type(config), "model type")
    family: Family = module.FAMILY
    return family


def shape_of(config: dict[str, Any], name: str) -> ModelShape:
    """The sizes of the model of a parsed config.json.

    Raises UnknownNameError for an unknown model type, InputError for another kind of model and for
    a missing or senseless size.
    """
    refuse_other_kinds(config)
    module = load_plugin(_PACKAGE, model_type(config), "model type")
    shape: ModelShape = module.shape({**config, "_name": name})
    return shape


def refuse_other_kinds(config: dict[str, Any]) -> None:
    """Raise InputError for a parsed config.json of no text model with one stack of blocks."""
    if any(config.get(key) is not None for key in _OTHER_SENSES):
        raise InputError(
            f"multimodal model ({model_type(config)}): only text models are handled",
            hint="use the text-only release of the model",
        )
    if config.get("is_encoder_decoder"):
        raise InputError(
            f"encoder-decoder model ({model_type(config)}): only models with one stack of blocks "
            "are handled"
        )


def model_type(config: dict[str, Any]) -> str:
    """`model_type` of a parsed config.json. Raises InputError where there is none."""
    found = config.get("model_type")
    if not isinstance(found, str) or not found:
        raise InputError(
            "config.json has no model_type, so the architecture is unknown",
            hint=f"known model types: {', '.join(plugin_names(_PACKAGE))}",
        )
    return found
