"""Golden bytes of one layer, and agreement with the compressed-tensors package."""

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig

from qdeploy.core.affine import QuantizedTensor, dequantize, quantize_per_channel
from qdeploy.core.errors import InputError
from qdeploy.core.precision import ActivationPrecision, WeightPrecision
from qdeploy.formats import compressed_tensors as ct

WEIGHTS = WeightPrecision(bits=8, granularity="channel", symmetric=True)
ACTIVATIONS = ActivationPrecision(bits=8, granularity="token", symmetric=True, dynamic=True)
CONFIG = {"quantization_config": ct.quantization_config(WEIGHTS, ACTIVATIONS, ["lm_head"])}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_golden_bytes() -> None:
    w = torch.tensor([[-2.0, 1.0, 0.5], [0.0, 0.0, 0.0]])
    packed = ct.pack("a.b", quantize_per_channel(w, torch.bfloat16))
    assert sorted(packed) == ["a.b.weight", "a.b.weight_scale"]
    # 2 / 127.5 is 0x3C81 (0.015747) in bfloat16, of which -2, 1, 0.5 are -127, 64, 32; 1 is 0x3F80.
    assert raw(packed["a.b.weight"]).hex() == "814020000000"
    assert raw(packed["a.b.weight_scale"]).hex() == "813c803f"


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (48, 80)])
def test_unpack_is_the_inverse(shape: tuple[int, int]) -> None:
    qt = quantize_per_channel(torch.randn(shape), torch.bfloat16)
    back = ct.unpack("x", ct.pack("x", qt))
    assert torch.equal(back.q, qt.q)
    assert torch.equal(back.scale, qt.scale)


def test_the_package_reads_config_and_tensors_as_we_do() -> None:
    config = QuantizationConfig.model_validate(CONFIG["quantization_config"])
    scheme = config.config_groups["group_0"]
    qt = quantize_per_channel(torch.randn(6, 10), torch.float32)
    parts = {"weight": qt.q, "weight_scale": qt.scale}
    theirs = BaseCompressor.get_value_from_registry("int-quantized").decompress(parts, scheme)
    assert torch.equal(theirs["weight"], dequantize(qt, torch.float32))


def test_what_the_format_cannot_hold_is_refused() -> None:
    q = torch.zeros(2, 4, dtype=torch.int8)
    with pytest.raises(InputError, match="symmetric"):
        ct.pack("x", QuantizedTensor(q, torch.ones(2, 1), zero_point=torch.zeros(2, 1)))
    with pytest.raises(InputError, match="one scale a channel"):
        ct.pack("x", QuantizedTensor(q, torch.ones(2, 2), group_size=2))


def test_missing_and_misshapen_tensors_are_named() -> None:
    with pytest.raises(InputError, match=r"no tensor 'x.weight_scale'"):
        ct.unpack("x", {"x.weight": torch.zeros(2, 4, dtype=torch.int8)})
    with pytest.raises(InputError, match=r"\[2, 4\] and \[4, 1\]"):
        ct.unpack(
            "x",
            {"x.weight": torch.zeros(2, 4, dtype=torch.int8), "x.weight_scale": torch.ones(4, 1)},
        )


def test_linear_names() -> None:
    tensors = ["b.weight", "b.weight_scale", "a.weight_scale", "a.weight", "norm.weight"]
    assert ct.linear_names(CONFIG, tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("weights", "num_bits", 4),
        ("weights", "strategy", "group"),
        ("input_activations", "dynamic", False),
        ("input_activations", "symmetric", False),
    ],
)
def test_other_precisions_are_refused(part: str, key: str, value: object) -> None:
    config = ct.quantization_config(WEIGHTS, ACTIVATIONS, [])
    config["config_groups"]["group_0"][part][key] = value
    with pytest.raises(InputError, match=f"{part}.*{key}"):
        ct.linear_names({"quantization_config": config}, [])


@pytest.mark.parametrize(
    "found", [None, {"quant_method": "gptq"}, {"quant_method": "compressed-tensors"}]
)
def test_other_formats_are_refused(found: object) -> None:
    with pytest.raises(InputError, match="int-quantized"):
        ct.linear_names({"quantization_config": found}, [])
