"""Affine integer quantization: `q = clamp(round(x / scale) + zero_point)`, signed.

q is -128..127 with 8 bits, -8..7 with 4. Symmetric scales are `absmax / 127.5` and `absmax / 7.5`,
half of the range of 255 or 15 steps, as compressed-tensors has it
(`quantization/utils/helpers.py::calculate_qparams`). A row or group of zeros gets scale 1, so that
q is 0 and nothing divides by zero. Rounding is to the nearest even, as in `torch.round`.

Shapes: O out_features, I in_features, G groups of K columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qdeploy.core.precision import WeightPrecision

Q_MIN = -128
Q_MAX = 127


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight matrix as integers: `w = (q - zero_point) * scale`."""

    q: Tensor
    """int8 [O, I], also with fewer bits."""
    scale: Tensor
    """[O, 1], or [O, G] with a group size; in the dtype in which it is stored."""
    zero_point: Tensor | None = None
    """Integers of the scale's shape; None where symmetric."""
    group_size: int | None = None
    """Columns that share a scale; None: the whole row does."""
    bits: int = 8


def symmetric_scale(absmax: Tensor, scale_dtype: torch.dtype, bits: int = 8) -> Tensor:
    """`absmax` by half of the steps of `bits`, rounded to `scale_dtype`.

    1 where that is 0 (zero rows, underflow).
    """
    scale = (absmax.float() / ((2**bits - 1) / 2)).to(scale_dtype)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def quantize_weight(
    w_OI: Tensor, precision: WeightPrecision, scale_dtype: torch.dtype
) -> QuantizedTensor:
    """`w_OI` by plain rounding in `precision`; the group size must divide its columns."""
    if precision.group_size is None:
        return quantize_per_channel(w_OI, scale_dtype, precision.bits)
    return quantize_per_group(w_OI, precision.group_size, scale_dtype, precision.bits)


def quantize_per_channel(w_OI: Tensor, scale_dtype: torch.dtype, bits: int = 8) -> QuantizedTensor:
    """Symmetric with one scale a row, rounded to its stored dtype before q is computed."""
    scale_O1 = symmetric_scale(w_OI.abs().amax(dim=1, keepdim=True), scale_dtype, bits)
    low, high = _q_range(bits)
    # Where the scale underflows to 0 it becomes 1, which sends the row's tiny values to 0.
    q_OI = torch.round(w_OI.float() / scale_O1.float()).clamp_(low, high).to(torch.int8)
    return QuantizedTensor(q=q_OI, scale=scale_O1, bits=bits)


def quantize_per_group(
    w_OI: Tensor, group_size: int, scale_dtype: torch.dtype, bits: int
) -> QuantizedTensor:
    """Symmetric, one scale for `group_size` columns of a row, rounded before q is computed."""
    w_OGK = w_OI.float().reshape(len(w_OI), -1, group_size)
    scale_OG1 = symmetric_scale(w_OGK.abs().amax(dim=2, keepdim=True), scale_dtype, bits)
    low, high = _q_range(bits)
    q_OGK = (w_OGK / scale_OG1.float()).round_().clamp_(low, high).to(torch.int8)
    return QuantizedTensor(
        q=q_OGK.flatten(1), scale=scale_OG1.squeeze(2), group_size=group_size, bits=bits
    )


def dequantize(qt: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    """The weights [O, I] that `qt` stands for, computed in float32."""
    w_OI = qt.q.float()
    if qt.zero_point is not None:
        w_OI -= _per_column(qt.zero_point.float(), qt)
    return (w_OI * _per_column(qt.scale.float(), qt)).to(dtype)


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 with one scale a row of the last dimension.

    Returns q int8 of x's shape and scale float32 [..., 1].
    """
    scale = symmetric_scale(x.abs().amax(dim=-1, keepdim=True), torch.float32)
    return torch.round(x.float() / scale).clamp_(Q_MIN, Q_MAX).to(torch.int8), scale


def round_trip_per_token(x: Tensor) -> Tensor:
    """`x` after `quantize_per_token` and back, float32, without the detour over int8."""
    scale = symmetric_scale(x.abs().amax(dim=-1, keepdim=True), torch.float32)
    return (x.float() / scale).round_().clamp_(Q_MIN, Q_MAX).mul_(scale)


def clamped(w_OI: Tensor, qt: QuantizedTensor) -> Tensor:
    """Where `w_OI`, of which `qt` was made without zero points, rounds to a q out of its range."""
    steps_OI = (w_OI.float() / _per_column(qt.scale.float(), qt)).round_()
    low, high = _q_range(qt.bits)
    return (steps_OI < low) | (steps_OI > high)


def clamped_per_token(x: Tensor) -> Tensor:
    """Where `quantize_per_token` clamps `x`."""
    scale = symmetric_scale(x.abs().amax(dim=-1, keepdim=True), torch.float32)
    steps = (x.float() / scale).round_()
    return (steps < Q_MIN) | (steps > Q_MAX)


def _q_range(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _per_column(values: Tensor, qt: QuantizedTensor) -> Tensor:
    if qt.group_size is None:
        return values
    return values.repeat_interleave(qt.group_size, dim=1)[:, : qt.q.shape[1]]
