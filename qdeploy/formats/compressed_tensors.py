"""compressed-tensors (vLLM, SGLang, transformers), in two of its forms:

int-quantized   INT8 weights with one scale a channel, INT8 activations with one scale a token
pack-quantized  INT4 weights with one scale a group, eight in a word; activations as they are

Layout and configuration follow compressed-tensors 0.20: `compressors/naive_quantized/base.py` and
`compressors/pack_quantized/base.py` (tensors), `quantization/quant_config.py`, `quant_scheme.py`
and `quant_args.py` (configuration). Its readers refuse keys inside a group that they do not know,
so only the oldest are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from qdeploy.core.affine import QuantizedTensor
from qdeploy.core.errors import InputError
from qdeploy.core.precision import GROUP_SIZES, ActivationPrecision, WeightPrecision
from qdeploy.formats._int32 import PER_WORD, pack_int4, unpack_int4

HOLDS_CONV1D = False
"""compressed-tensors 0.20 quantizes `Linear` and `Embedding` modules only; transformers would load
the integers of a `Conv1D` (GPT-2) as if they were its weights."""

_INT = "int-quantized"
_PACKED = "pack-quantized"
_WEIGHT = ".weight"
_WORDS = ".weight_packed"
_SCALE = ".weight_scale"
_SHAPE = ".weight_shape"
_SHAPE_BYTES = 16
_HOLDS = (
    "compressed-tensors is written with symmetric INT8 weights and one scale a channel, or "
    f"symmetric INT4 weights and one scale a group of {', '.join(map(str, GROUP_SIZES))}"
)


def pack(name: str, qt: QuantizedTensor) -> dict[str, Tensor]:
    """The tensors that stand for linear layer `name`.

    INT8: int8 weight [O, I] and its scale [O, 1]. INT4: words [O, I / 8], scales [O, G], shape [2].
    Raises InputError for what the format cannot hold.
    """
    if qt.zero_point is None and (qt.bits, qt.group_size) == (8, None):
        return {name + _WEIGHT: qt.q.contiguous(), name + _SCALE: qt.scale.contiguous()}
    if qt.zero_point is None and qt.bits == 4 and qt.group_size in GROUP_SIZES:
        return {
            name + _WORDS: pack_int4(qt.q),
            name + _SCALE: qt.scale.contiguous(),
            name + _SHAPE: torch.tensor(qt.q.shape, dtype=torch.int64),
        }
    raise InputError(f"{name}: {_HOLDS}")


def unpack(name: str, tensors: Mapping[str, Tensor]) -> QuantizedTensor:
    """Linear layer `name` from its tensors. Raises InputError when one is missing or misshapen."""
    packed = name + _WORDS in tensors
    names = [name + key for key in ((_WORDS, _SCALE, _SHAPE) if packed else (_WEIGHT, _SCALE))]
    for tensor in names:
        if tensor not in tensors:
            raise InputError(f"quantized layer {name} has no tensor {tensor!r}")
    parts = [tensors[tensor] for tensor in names]
    return _int4(name, *parts) if packed else _int8(name, *parts)


def _int8(name: str, q: Tensor, scale: Tensor) -> QuantizedTensor:
    if q.dtype != torch.int8 or q.ndim != 2 or scale.shape != (q.shape[0], 1):
        raise InputError(
            f"quantized layer {name}: expected an int8 matrix [O, I] and a scale [O, 1], "
            f"found {q.dtype} {list(q.shape)} and {list(scale.shape)}"
        )
    return QuantizedTensor(q=q, scale=scale)


def _int4(name: str, words: Tensor, scale: Tensor, shape: Tensor) -> QuantizedTensor:
    rows, columns = shape.tolist() if shape.shape == (2,) else (0, 0)
    groups = scale.shape[1] if scale.ndim == 2 and scale.shape[0] == rows else 0
    group_size = columns // groups if groups else 0
    fits = words.shape == (rows, columns // PER_WORD) and group_size * groups == columns
    if words.dtype != torch.int32 or not fits or group_size not in GROUP_SIZES:
        raise InputError(
            f"quantized layer {name}: expected int32 words [O, I / 8], scales [O, I / group size] "
            f"and the shape O, I, found {words.dtype} {list(words.shape)}, {list(scale.shape)} and "
            f"{shape.tolist()}"
        )
    return QuantizedTensor(q=unpack_int4(words), scale=scale, group_size=group_size, bits=4)


def stored_bytes(weights: WeightPrecision, shape: tuple[int, int], scale_bytes: int) -> int:
    """Bytes of the tensors of a linear layer of `shape` [O, I] whose scales take `scale_bytes`."""
    rows, columns = shape
    if weights.group_size is None:
        return rows * (columns + scale_bytes)
    groups = columns // weights.group_size
    return rows * (columns // 2 + groups * scale_bytes) + _SHAPE_BYTES


def quantization_config(
    weights: WeightPrecision, activations: ActivationPrecision | None, ignore: list[str]
) -> dict[str, Any]:
    """The `quantization_config` of config.json; `ignore` names the linear layers left alone.

    Raises InputError for precisions that the format is not written with.
    """
    inputs = None
    if activations is not None:
        inputs = {
            **_arguments(activations.bits, activations.symmetric, activations.granularity),
            "dynamic": activations.dynamic,
            "observer": None,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": _form(weights, activations),
        "quantization_status": "compressed",
        "ignore": ignore,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    **_arguments(weights.bits, weights.symmetric, weights.granularity),
                    "group_size": weights.group_size,
                    "dynamic": False,
                    "observer": "minmax",
                },
                "input_activations": inputs,
                "output_activations": None,
            }
        },
    }


def _form(weights: WeightPrecision, activations: ActivationPrecision | None) -> str:
    kind = (weights.bits, weights.granularity, activations is not None)
    forms = {(8, "channel", True): _INT, (4, "group", False): _PACKED}
    if kind not in forms:
        raise InputError(
            f"{weights} {activations or 'a16'}: {_HOLDS}; activations are INT8 beside INT8 weights "
            "and left as they are beside INT4"
        )
    return forms[kind]


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

    Raises InputError unless the folder is one of the forms that this module writes.
    """
    found = config.get("quantization_config") or {}
    form = found.get("format")
    if found.get("quant_method") != "compressed-tensors" or form not in _WANTED:
        raise InputError(
            f"expected compressed-tensors {' or '.join(_WANTED)}, found "
            f"{found.get('quant_method')} {form}"
        )
    for name, group in (found.get("config_groups") or {}).items():
        _check_group(name, group, _WANTED[form])
    return sorted(name.removesuffix(_SCALE) for name in tensors if name.endswith(_SCALE))


_WANTED: dict[str, dict[str, dict[str, Any]]] = {
    _INT: {
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        "input_activations": {
            "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
        },
    },
    _PACKED: {
        "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "actorder": None,
        },
        "input_activations": {"num_bits": None},
    },
}  # fmt: skip


def _check_group(
    name: str, group: Mapping[str, Any], wanted: Mapping[str, Mapping[str, Any]]
) -> None:
    for part, values in wanted.items():
        found = group.get(part) or {}
        wrong = {key: found.get(key) for key, value in values.items() if found.get(key) != value}
        if wrong:
            raise InputError(f"quantization_config {name}.{part}: unsupported {wrong}")
