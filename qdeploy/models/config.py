"""Values of a parsed config.json, read with checks; what the families' files share.

The dict that a family's `shape` gets has the model's name under `_name`.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape

Values = dict[str, Any]

# Names in config.json, and what ModelShape calls them.
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def model_shape(config: Values, **sizes: Any) -> ModelShape:
    """The shape of `sizes`, named as `config` says. Raises InputError for senseless sizes."""
    try:
        return ModelShape(name=config["_name"], family=config["model_type"], **sizes)
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{part}: " for part in problem["loc"])
        reason = problem["msg"].removeprefix("Value error, ")
        raise InputError(f"config of {config['_name']}: {where}{reason}") from None


def size(config: Values, *keys: str, default: int | None = None) -> int:
    """The first of `keys` that `config` has, or the default.

    Raises InputError when none is there, or the value is no whole number of at least 1.
    """
    found = next(((key, config[key]) for key in keys if config.get(key) is not None), None)
    if found is None and default is None:
        raise InputError(f"config of {config['_name']} has no key {keys[0]!r}")
    key, value = found or (keys[0], default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"config of {config['_name']}: {key} must be a whole number of at least 1, "
            f"found {value!r}"
        )
    return value


def optional_size(config: Values, key: str) -> int | None:
    """As `size`; None where the key is missing or null."""
    return None if config.get(key) is None else size(config, key)


def flag(config: Values, key: str, *, default: bool) -> bool:
    """A switch; null counts as not given."""
    value = config.get(key)
    return default if value is None else bool(value)


def dropout(config: Values, key: str, default: float = 0.0) -> float:
    """A dropout probability; null counts as not given."""
    value = config.get(key)
    return default if value is None else value


def head_dim(config: Values, hidden: int, heads: int, *, key: str = "head_dim") -> int:
    """Width of a head: `key`, or the hidden size divided by the heads.

    Raises InputError where it is not given and the heads do not divide the hidden size.
    """
    given = optional_size(config, key)
    if given is None and hidden % heads:
        raise InputError(
            f"config of {config['_name']}: hidden size {hidden} does not divide into {heads} heads"
        )
    return given or hidden // heads


def activation(config: Values, *keys: str, default: str) -> str:
    """The activation function as ModelShape names it. Raises InputError for an unknown one."""
    name = next((config[key] for key in keys if config.get(key) is not None), default)
    if name not in _ACTIVATIONS:
        raise InputError(
            f"config of {config['_name']}: unknown activation {name!r}",
            hint=f"known: {', '.join(_ACTIVATIONS)}",
        )
    return _ACTIVATIONS[name]


def rotary_dim(config: Values, head: int, *, key: str, default: float) -> int | None:
    """Rotated part of a head of width `head`; None for the whole.

    The fraction is `key`, or `partial_rotary_factor` of `rope_parameters` (transformers 5).
    """
    rope = config.get("rope_parameters") or {}
    fraction = config.get(key, rope.get("partial_rotary_factor"))
    if fraction is None:
        fraction = default
    return None if fraction == 1 else int(head * fraction)


def windows(config: Values, *, every: int, default: int | None = None) -> Values:
    """`sliding_window` and `full_attention_every` of a model that has a window.

    Layers follow `layer_types` where it is given, else every `every`-th is full.
    Raises InputError for a mix of layers that does not repeat.
    """
    window = optional_size(config, "sliding_window") or default
    types = config.get("layer_types")
    if types is None or window is None:
        return {"sliding_window": window, "full_attention_every": every}
    full = [index for index, kind in enumerate(types) if kind == "full_attention"]
    if len(full) == len(types):
        return {"sliding_window": None}
    every = full[0] + 1 if full else 1
    if full and full != list(range(every - 1, len(types), every)):
        raise InputError(
            f"config of {config['_name']}: layer_types does not repeat windowed and full layers "
            "in a fixed rhythm, which is not handled"
        )
    return {"sliding_window": window, "full_attention_every": every}


def refuse(config: Values, key: str, *, because: str) -> None:
    """Raise InputError when the switch `key` is on."""
    if config.get(key):
        raise InputError(f"config of {config['_name']}: {key} is not handled: {because}")
