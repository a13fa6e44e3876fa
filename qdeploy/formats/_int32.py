"""4-bit integers packed into int32 words, eight to a word, the first in the lowest bits.

The order of compressed-tensors (`compressors/pack_quantized/helpers.py::pack_to_int32`): along a
row, each value stored as `q + 8`.
"""

from __future__ import annotations

import torch
from torch import Tensor

PER_WORD = 8

_BITS = 4
_OFFSET = 8
_MASK = 15


def pack_int4(q_OI: Tensor) -> Tensor:
    """int8 [O, I] of -8..7 as int32 [O, I / 8]; I is a multiple of 8."""
    rows, columns = q_OI.shape
    codes = (q_OI.to(torch.int32) + _OFFSET).reshape(rows, columns // PER_WORD, PER_WORD)
    # The bits of the eight do not overlap, so that their sum is the word, its sign included.
    return (codes << _shifts(q_OI)).sum(dim=2, dtype=torch.int32)


def unpack_int4(words: Tensor) -> Tensor:
    """int32 [O, W] as int8 [O, 8 W]."""
    codes = (words.unsqueeze(2) >> _shifts(words)) & _MASK
    return (codes - _OFFSET).to(torch.int8).flatten(1)


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(PER_WORD, dtype=torch.int32, device=like.device) * _BITS
