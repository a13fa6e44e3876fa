"""Rounding against element-by-element references."""

import pytest
import torch

from qdeploy.core.affine import (
    QuantizedTensor,
    clamped,
    clamped_per_token,
    dequantize,
    quantize_per_channel,
    quantize_per_group,
    quantize_per_token,
    quantize_weight,
    round_trip_per_token,
    symmetric_scale,
)
from qdeploy.core.precision import WeightPrecision


def slow_row(values: list[float], scale: float) -> list[int]:
    # Python's round is to the nearest even, as torch's.
    return [max(-128, min(127, round(value / scale))) for value in values]


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 1), (1, 9), (48, 80)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_per_channel_is_the_slow_reference(shape: tuple[int, int], dtype: torch.dtype) -> None:
    w = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.05
    qt = quantize_per_channel(w, dtype)
    assert qt.q.dtype == torch.int8
    assert qt.scale.dtype == dtype
    for row, q, scale in zip(w, qt.q, qt.scale, strict=True):
        wanted = torch.tensor(float(row.abs().max()) / 127.5).to(dtype)
        assert scale.item() == wanted.item()
        steps = (row / wanted.float()).tolist()
        assert q.tolist() == [max(-128, min(127, round(step))) for step in steps]


@pytest.mark.parametrize(("shape", "group_size"), [((1, 32), 32), ((3, 64), 32), ((5, 128), 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int4_per_group_is_the_slow_reference(
    shape: tuple[int, int], group_size: int, dtype: torch.dtype
) -> None:
    w = (torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 0.05).to(dtype)
    w[0, :group_size] = 0.0
    qt = quantize_per_group(w, group_size, dtype, 4)
    assert (qt.bits, qt.group_size, qt.q.dtype, qt.scale.dtype) == (
        4,
        group_size,
        torch.int8,
        dtype,
    )
    back, outside = dequantize(qt, torch.float32), clamped(w, qt)
    for row in range(shape[0]):
        for group in range(shape[1] // group_size):
            columns = slice(group * group_size, (group + 1) * group_size)
            values = w[row, columns].float()
            scale = torch.tensor(float(values.abs().max()) / 7.5).to(dtype)
            if scale == 0:
                scale = torch.ones_like(scale)
            assert qt.scale[row, group] == scale
            steps = [round(step) for step in (values / scale.float()).tolist()]
            wanted = [max(-8, min(7, step)) for step in steps]
            assert qt.q[row, columns].tolist() == wanted
            assert back[row, columns].tolist() == (torch.tensor(wanted) * scale.float()).tolist()
            assert outside[row, columns].tolist() == [step < -8 or step > 7 for step in steps]


def test_a_precision_chooses_the_rounding() -> None:
    w = torch.randn(4, 64, generator=torch.Generator().manual_seed(8))
    channel = WeightPrecision(bits=8, granularity="channel", symmetric=True)
    group = WeightPrecision(bits=4, granularity="group", group_size=32, symmetric=True)
    assert torch.equal(
        quantize_weight(w, channel, torch.float32).q, quantize_per_channel(w, torch.float32).q
    )
    found, wanted = (
        quantize_weight(w, group, torch.float16),
        quantize_per_group(w, 32, torch.float16, 4),
    )
    assert torch.equal(found.q, wanted.q)
    assert torch.equal(found.scale, wanted.scale)


def test_what_is_clamped_per_token() -> None:
    x = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(9))
    x[0, 0] = 0.0
    scale = quantize_per_token(x)[1]
    wanted = [
        [[round(step) > 127 for step in row] for row in rows] for rows in (x / scale).tolist()
    ]
    assert clamped_per_token(x).tolist() == wanted
    assert bool(clamped_per_token(torch.tensor([127.5, 1.0]))[0])


def test_the_range_is_used_to_both_ends() -> None:
    q = quantize_per_channel(torch.tensor([[-127.5, 127.5, 0.0, 0.5, 63.5]]), torch.float32).q
    assert q.tolist() == [[-128, 127, 0, 0, 64]]


def test_zero_and_underflowing_rows_are_zero() -> None:
    w = torch.tensor([[0.0, 0.0], [1e-9, -1e-9], [1.0, -1.0]])
    qt = quantize_per_channel(w, torch.float16)
    assert qt.q[:2].tolist() == [[0, 0], [0, 0]]
    assert qt.scale[:2].flatten().tolist() == [1.0, 1.0]
    assert bool(torch.isfinite(dequantize(qt, torch.float32)).all())


def test_per_token_is_the_slow_reference_in_any_number_of_dimensions() -> None:
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2))
    x[1, 2] = 0.0
    q, scale = quantize_per_token(x)
    assert scale.shape == (2, 3, 1)
    assert scale[1, 2].item() == 1.0
    for b in range(2):
        for t in range(3):
            assert q[b, t].tolist() == slow_row(x[b, t].tolist(), scale[b, t].item())
    assert torch.equal(round_trip_per_token(x), q.float() * scale)


def test_rows_do_not_influence_each_other() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    louder = x.clone()
    louder[0] *= 1000
    assert torch.equal(quantize_per_token(x)[0][1:], quantize_per_token(louder)[0][1:])


def test_dequantize_with_zero_points_and_ragged_groups() -> None:
    q = torch.tensor([[1, 2, 3, 4, 5]], dtype=torch.int8)
    scale = torch.tensor([[0.5, 2.0, 3.0]])
    zero_point = torch.tensor([[1, 0, -1]], dtype=torch.int8)
    found = dequantize(QuantizedTensor(q, scale, zero_point, group_size=2), torch.float32)
    assert found.tolist() == [[0.0, 0.5, 6.0, 8.0, 18.0]]


def test_the_error_is_at_most_half_a_step() -> None:
    w = torch.randn(16, 33, generator=torch.Generator().manual_seed(4))
    qt = quantize_per_channel(w, torch.float32)
    assert bool(((dequantize(qt, torch.float32) - w).abs() <= qt.scale * 0.5001).all())


def test_scale_keeps_its_dtype_and_shape() -> None:
    scale = symmetric_scale(torch.tensor([[127.5], [0.0]]), torch.bfloat16)
    assert scale.dtype == torch.bfloat16
    assert scale.tolist() == [[1.0], [1.0]]
