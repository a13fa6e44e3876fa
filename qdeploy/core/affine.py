"""Affine integer quantization: `q = clamp(round(x / scale) + zero_point)`, signed 8 bit -128..127.

Symmetric scales are `absmax / 127.5`, half of the range of 255 steps, as compressed-tensors has it
(`quantization/utils/helpers.py::calculate_qparams`). A row of zeros gets scale 1, so that q is 0
and nothing divides by zero. Rounding is to the nearest even, as in `torch.round`.

Shapes: O out_features, I in_features, G groups of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Q_MIN = -128
Q_MAX = 127
_HALF_RANGE = (Q_MAX - Q_MIN) / 2


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight matrix as integers: `w = (q - zero_point) * scale`."""

    q: Tensor
    """int8 [O, I]."""
    scale: Tensor
    """[O, 1], or [O, G] with a group size; in the dtype in which it is stored."""
    zero_point: Tensor | None = None
    """Integers of the scale's shape; None where symmetric."""
    group_size: int | None = None
    """Columns that share a scale; None: the whole row does."""


def symmetric_scale(absmax: Tensor, scale_dtype: torch.dtype) -> Tensor:
    """`absmax / 127.5` rounded to `scale_dtype`; 1 where that is 0 (zero rows, underflow)."""
    scale = (absmax.float() / _HALF_RANGE).to(scale_dtype)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def quantize_per_channel(w_OI: Tensor, scale_dtype: torch.dtype) -> QuantizedTensor:
    """Symmetric int8 with one scale a row, rounded to its stored dtype before q is computed."""
    scale_O1 = symmetric_scale(w_OI.abs().amax(dim=1, keepdim=True), scale_dtype)
    # Where the scale underflows to 0 it becomes 1, which sends the row's tiny values to 0.
    q_OI = torch.round(w_OI.float() / scale_O1.float()).clamp_(Q_MIN, Q_MAX).to(torch.int8)
    return QuantizedTensor(q=q_OI, scale=scale_O1)


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


def _per_column(values: Tensor, qt: QuantizedTensor) -> Tensor:
    if qt.group_size is None:
        return values
    return values.repeat_interleave(qt.group_size, dim=1)[:, : qt.q.shape[1]]
