"""pack-quantized: golden bytes, a slow reference of the packing, the compressed-tensors package."""

from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig

from qdeploy.core.affine import QuantizedTensor, dequantize, quantize_per_group
from qdeploy.core.errors import InputError
from qdeploy.core.precision import ActivationPrecision, WeightPrecision
from qdeploy.formats import compressed_tensors as ct

ACTIVATIONS = ActivationPrecision(bits=8, granularity="token", symmetric=True, dynamic=True)


def weights(group_size: Any = 32) -> WeightPrecision:
    return WeightPrecision(bits=4, granularity="group", group_size=group_size, symmetric=True)


def rounded(rows: int, columns: int, group_size: int, dtype: torch.dtype) -> QuantizedTensor:
    w = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    return quantize_per_group(w, group_size, dtype, 4)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def slow_words(row: list[int]) -> list[int]:
    """Eight values to a word, the first in the lowest four bits, as two's complement."""
    words = []
    for start in range(0, len(row), 8):
        word = sum((value + 8) << (4 * place) for place, value in enumerate(row[start : start + 8]))
        words.append(word - 2**32 if word >= 2**31 else word)
    return words


def test_golden_bytes() -> None:
    w = torch.zeros(1, 32)
    w[0, :8] = torch.tensor([-7.5, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 7.5])
    packed = ct.pack("a.b", quantize_per_group(w, 32, torch.bfloat16, 4))
    assert sorted(packed) == ["a.b.weight_packed", "a.b.weight_scale", "a.b.weight_shape"]
    # The scale is 1, so q is -8 -3 -1 0 0 1 3 7, stored as 0 5 7 8 8 9 b f; zeros are 8.
    assert raw(packed["a.b.weight_packed"]).hex() == "508798fb" + "88888888" * 3
    assert raw(packed["a.b.weight_scale"]).hex() == "803f"
    assert raw(packed["a.b.weight_shape"]).hex() == "01000000000000002000000000000000"


@pytest.mark.parametrize(
    ("rows", "columns", "group_size"), [(1, 32, 32), (7, 96, 32), (5, 128, 64), (3, 256, 128)]
)
def test_packing_is_the_slow_reference_and_unpack_its_inverse(
    rows: int, columns: int, group_size: int
) -> None:
    qt = rounded(rows, columns, group_size, torch.float16)
    packed = ct.pack("x", qt)
    assert packed["x.weight_packed"].dtype == torch.int32
    assert packed["x.weight_packed"].tolist() == [slow_words(row) for row in qt.q.tolist()]
    assert packed["x.weight_shape"].tolist() == [rows, columns]
    back = ct.unpack("x", packed)
    assert torch.equal(back.q, qt.q)
    assert torch.equal(back.scale, qt.scale)
    assert (back.bits, back.group_size, back.zero_point) == (4, group_size, None)
    stored = sum(tensor.numel() * tensor.element_size() for tensor in packed.values())
    assert ct.stored_bytes(weights(group_size), (rows, columns), 2) == stored


def test_the_package_packs_and_reads_as_we_do() -> None:
    config = ct.quantization_config(weights(), None, ["lm_head"])
    scheme = QuantizationConfig.model_validate(config).config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    qt = rounded(6, 96, 32, torch.float32)
    ours = {key.removeprefix("x."): tensor for key, tensor in ct.pack("x", qt).items()}
    w = dequantize(qt, torch.float32)
    assert torch.equal(compressor.decompress(ours, scheme)["weight"], w)
    theirs = compressor.compress({"weight": w, "weight_scale": qt.scale}, scheme)
    assert torch.equal(theirs["weight_packed"], ours["weight_packed"])
    assert torch.equal(theirs["weight_shape"], ours["weight_shape"])


@pytest.mark.parametrize(
    "change",
    [{"bits": 8}, {"group_size": 16}, {"group_size": None}, {"zero_point": torch.zeros(2, 2)}],
)
def test_what_the_format_cannot_hold_is_refused(change: dict[str, Any]) -> None:
    kept: dict[str, Any] = {"group_size": 32, "bits": 4, **change}
    with pytest.raises(InputError, match="symmetric INT4 weights and one scale a group of 32, 64"):
        ct.pack(
            "x", QuantizedTensor(torch.zeros(2, 64, dtype=torch.int8), torch.ones(2, 2), **kept)
        )


@pytest.mark.parametrize(
    ("precision", "activations"),
    [
        (weights(), ACTIVATIONS),
        (WeightPrecision(bits=8, granularity="channel", symmetric=True), None),
        (WeightPrecision(bits=4, granularity="channel", symmetric=True), None),
    ],
)
def test_precisions_without_a_form_are_refused(
    precision: WeightPrecision, activations: ActivationPrecision | None
) -> None:
    with pytest.raises(InputError, match=f"^{precision} "):
        ct.quantization_config(precision, activations, [])


@pytest.mark.parametrize("name", ["weight_scale", "weight_shape"])
def test_missing_tensors_are_named(name: str) -> None:
    packed = ct.pack("x", rounded(2, 32, 32, torch.float32))
    del packed[f"x.{name}"]
    with pytest.raises(InputError, match=f"no tensor 'x.{name}'"):
        ct.unpack("x", packed)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("weight_packed", torch.zeros(2, 8)),
        ("weight_packed", torch.zeros(2, 7, dtype=torch.int32)),
        ("weight_scale", torch.ones(2, 3)),
        ("weight_scale", torch.ones(2)),
        ("weight_scale", torch.ones(2, 0)),
        ("weight_shape", torch.tensor([2, 72])),
        ("weight_shape", torch.tensor(2)),
    ],
)
def test_misshapen_tensors_are_refused(name: str, tensor: torch.Tensor) -> None:
    packed = {**ct.pack("x", rounded(2, 64, 32, torch.float32)), f"x.{name}": tensor}
    with pytest.raises(InputError, match="quantized layer x: expected int32 words"):
        ct.unpack("x", packed)


def test_linear_names() -> None:
    config = {"quantization_config": ct.quantization_config(weights(64), None, ["lm_head"])}
    tensors = ["b.weight_packed", "b.weight_scale", "b.weight_shape", "a.weight_scale", "n.weight"]
    assert ct.linear_names(config, tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("weights", {"num_bits": 8}),
        ("weights", {"actorder": "group"}),
        ("weights", {"symmetric": False}),
        ("input_activations", {"num_bits": 8}),
    ],
)
def test_other_precisions_are_refused(part: str, change: dict[str, Any]) -> None:
    config = ct.quantization_config(weights(), None, [])
    group = config["config_groups"]["group_0"]
    group[part] = {**(group[part] or {}), **change}
    with pytest.raises(InputError, match=f"{part}.*{next(iter(change))}"):
        ct.linear_names({"quantization_config": config}, [])
