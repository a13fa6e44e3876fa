"""Int8Linear against the definition, one value at a time."""

from __future__ import annotations

import pytest
import torch

from qdeploy.core.affine import QuantizedTensor, quantize_per_channel, quantize_per_token
from qdeploy.runtime.int8_linear import Activations, Int8Linear, quantize_rows


def layer(features_in: int, features_out: int, bias: bool, **options) -> tuple[Int8Linear, ...]:
    torch.manual_seed(0)
    w_OI = torch.randn(features_out, features_in)
    weight = quantize_per_channel(w_OI, torch.bfloat16)
    bias_O = torch.randn(features_out) if bias else None
    return Int8Linear(weight, bias_O, **options), weight, bias_O


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", ["native", "float32"])
def test_equals_the_definition(bias, kernel):
    linear, weight, bias_O = layer(70, 9, bias, kernel=kernel)
    x = torch.randn(2, 3, 70) * torch.tensor([1.0, 100.0, 0.01])[:, None]
    y = linear(x)
    assert y.shape == (2, 3, 9)
    for row_I, out_O in zip(x.reshape(-1, 70), y.reshape(-1, 9), strict=True):
        scale_x = float(row_I.abs().max()) / 127.5
        q_I = (row_I / scale_x).round().clamp(-128, 127).long()
        for o in range(9):
            total = int((q_I * weight.q[o].long()).sum())
            expected = total * scale_x * float(weight.scale[o])
            expected += float(bias_O[o]) if bias else 0.0
            assert float(out_O[o]) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_kernels_and_residence_give_the_same_bits():
    x = torch.randn(5, 1300)
    results = [
        layer(1300, 4, True, kernel=kernel, resident=resident)[0](x)
        for kernel in ("native", "float32")
        for resident in (True, False)
    ]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_quantize_rows_equals_quantize_per_token():
    torch.manual_seed(1)
    x_MI = torch.randn(6, 33)
    x_MI[1] = 0
    x_MI[2] = 1e-44
    x_MI[3, 0], x_MI[3, 1] = -50.0, 50.0
    x_MI[4] = torch.arange(33) / 2
    q_MI, scale_M1 = quantize_rows(x_MI)
    expected_q, expected_scale = quantize_per_token(x_MI)
    assert torch.equal(q_MI.to(torch.int8), expected_q)
    assert torch.equal(scale_M1, expected_scale)
    assert q_MI[3, :2].tolist() == [-128, 127]


@pytest.mark.parametrize("kernel", ["native", "float32"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_stays_visible_and_alone(kernel, bad):
    linear = layer(8, 4, True, kernel=kernel)[0]
    x = torch.ones(3, 8)
    x[1, 2] = bad
    y = linear(x)
    assert not y[1].isfinite().any()
    assert y[[0, 2]].isfinite().all()


def test_empty_batch():
    assert layer(8, 4, False)[0](torch.zeros(0, 8)).shape == (0, 4)


def test_layers_share_an_activation_but_never_a_stale_one():
    shared = Activations()
    layers = [
        Int8Linear(quantize_per_channel(torch.randn(5, 8), torch.float32), None, activations=shared)
        for _ in range(2)
    ]
    x = torch.randn(3, 8)
    alone = [Int8Linear(QuantizedTensor(o.weight, o.scale[:, None]), None) for o in layers]
    assert torch.equal(layers[0](x), alone[0](x))
    assert torch.equal(layers[1](x), alone[1](x))
    x.mul_(2)
    assert torch.equal(layers[0](x), alone[0](x))
    assert torch.equal(layers[1](x.clone().neg_()), alone[1](-x))
