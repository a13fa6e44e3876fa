"""compressed-tensors, `int-quantized`: INT8 weights and activations (vLLM, SGLang, transformers).

Layout and configuration follow compressed-tensors 0.20: `compressors/naive_quantized/base.py`
(tensors), `quantization/quant_config.py`, `quant_scheme.py` and `quant_args.py` (configuration).
Its readers refuse keys inside a group that they do not know, so only the oldest are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from qdeploy.core.affine import QuantizedTensor
from qdeploy.core.errors import InputError
from qdeploy.core.precision import ActivationPrecision, WeightPrecision

HOLDS_CONV1D = False
"""compressed-tensors 0.20 quantizes `Linear` and `Embedding` modules only; transformers would load
the integers of a `Conv1D` (GPT-2) as if they were its weights."""

_FORMAT = "int-quantized"
_WEIGHT = ".weight"
_SCALE = ".weight_scale"


def pack(name: str, qt: QuantizedTensor) -> dict[str, Tensor]:
    """The tensors that stand for linear layer `name`: int8 weight [O, I] and its scale [O, 1].

    Raises InputError for what the format cannot hold: zero points and groups.
    """
    if qt.zero_point is not None or qt.group_size is not None:
        raise InputError(f"{name}: {_FORMAT} holds symmetric weights with one scale a channel only")
    return {name + _WEIGHT: qt.q.contiguous(), name + _SCALE: qt.scale.contiguous()}


def unpack(name: str, tensors: Mapping[str, Tensor]) -> QuantizedTensor:
    """Linear layer `name` from its tensors. Raises InputError when one is missing or misshapen."""
    try:
        q, scale = tensors[name + _WEIGHT], tensors[name + _SCALE]
    except KeyError as error:
        raise InputError(f"quantized layer {name} has no tensor {error.args[0]!r}") from None
    if str(q.dtype) != "torch.int8" or q.ndim != 2 or scale.shape != (q.shape[0], 1):
        raise InputError(
            f"quantized layer {name}: expected an int8 matrix [O, I] and a scale [O, 1], "
            f"found {q.dtype} {list(q.shape)} and {list(scale.shape)}"
        )
    return QuantizedTensor(q=q, scale=scale)


def quantization_config(
    weights: WeightPrecision, activations: ActivationPrecision, ignore: list[str]
) -> dict[str, Any]:
    """The `quantization_config` of config.json; `ignore` names the linear layers left alone."""
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT,
        "quantization_status": "compressed",
        "ignore": ignore,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    **_arguments(weights.bits, weights.symmetric, weights.granularity),
                    "dynamic": False,
                    "observer": "minmax",
                },
                "input_activations": {
                    **_arguments(activations.bits, activations.symmetric, activations.granularity),
                    "dynamic": activations.dynamic,
                    "observer": None,
                },
                "output_activations": None,
            }
        },
    }


def _arguments(bits: int, symmetric: bool, strategy: str) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": None,
        "block_structure": None,
        "observer_kwargs": {},
    }


def linear_names(config: Mapping[str, Any], tensors: Iterable[str]) -> list[str]:
    """The quantized linear layers of a folder, from its parsed config.json and tensor names.

    Raises InputError unless the folder is INT8 per channel with dynamic activations per token.
    """
    found = config.get("quantization_config") or {}
    if found.get("quant_method") != "compressed-tensors" or found.get("format") != _FORMAT:
        raise InputError(
            f"expected compressed-tensors {_FORMAT}, found "
            f"{found.get('quant_method')} {found.get('format')}"
        )
    for name, group in (found.get("config_groups") or {}).items():
        _check_group(name, group)
    return sorted(name.removesuffix(_SCALE) for name in tensors if name.endswith(_SCALE))


def _check_group(name: str, group: Mapping[str, Any]) -> None:
    wanted = {
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        "input_activations": {
            "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
        },
    }  # fmt: skip
    for part, values in wanted.items():
        found = group.get(part) or {}
        wrong = {key: found.get(key) for key, value in values.items() if found.get(key) != value}
        if wrong:
            raise InputError(f"quantization_config {name}.{part}: unsupported {wrong}")
