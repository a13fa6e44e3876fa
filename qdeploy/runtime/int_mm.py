"""Exact integer matrix products: int8 x int8 summed in 32 bits.

Two kernels give the same integers:

`native`   torch._int_mm; fast where the processor or GPU multiplies 8-bit integers.
`float32`  The float32 product. It is exact, whatever the order of summation, while every partial
           sum is an integer of at most 2**24 (float32 holds 24 bits of significand). A product of
           two int8 values is at most 128 * 128 = 2**14, so sums of 1024 terms always qualify;
           longer ones are cut into chunks, and the chunks' sums are added in float64.

For fixed weights the bound is tighter: no partial sum exceeds 128 * sum|w| of the row, so a
product needs only as many chunks as keep sum|w| <= 2**17 (`exact_chunks`); usually one.

Which kernel runs is measured once a process. As the results are equal bit for bit, the choice
changes no result.

Legend: M rows of activations, K or I summed features, N or O output features.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Kernel = Literal["native", "float32"]

_EXACT_SUM = 2**24
_EXACT_TERMS = 1024
_LARGEST_ROW_SUM = _EXACT_SUM // 128
_CAST_ELEMENTS = 1 << 22
"""Weights cast to float32 at a time where no float32 copy is kept (16 MiB)."""


def int_mm(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """The product of int8 `a_MK` and the transpose of int8 `b_NK`, as int32 [M, N]."""
    if fastest_kernel(a_MK.device) == "native":
        return native_mm(a_MK, b_NK)
    return float32_mm(a_MK, b_NK)


def float32_mm(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """`int_mm` by float32 products of chunks of at most 1024 terms."""
    total_MN = a_MK.new_zeros(a_MK.shape[0], b_NK.shape[0], dtype=torch.int32)
    for start in range(0, a_MK.shape[1], _EXACT_TERMS):
        part = slice(start, start + _EXACT_TERMS)
        total_MN += (a_MK[:, part].float() @ b_NK[:, part].float().T).int()
    return total_MN


def native_mm(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """`int_mm` by torch._int_mm; on a GPU the operands are padded to the sizes that it takes."""
    M, N = a_MK.shape[0], b_NK.shape[0]
    if a_MK.is_cuda:
        a_MK, b_NK = _pad_for_cuda(a_MK, b_NK)
    product: Tensor = torch._int_mm(a_MK, b_NK.T)
    return product[:M, :N]


def _pad_for_cuda(a_MK: Tensor, b_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros up to what torch._int_mm wants there: over 16 rows, and multiples of 8 elsewhere."""
    (M, K), N = a_MK.shape, b_NK.shape[0]
    padded_a = functional.pad(a_MK, (0, -K % 8, 0, max(0, 32 - M)))
    return padded_a, functional.pad(b_NK, (0, -K % 8, 0, -N % 8))


@cache
def fastest_kernel(device: torch.device) -> Kernel:
    """The faster kernel on `device`, by timing both on one fixed product."""
    if device.type == "cuda":
        return "native"
    a_MK = torch.ones(64, 512, dtype=torch.int8, device=device)
    b_NK = torch.ones(512, 512, dtype=torch.int8, device=device)
    a_float, b_float = a_MK.float(), b_NK.float()
    native = _seconds(lambda: native_mm(a_MK, b_NK))
    return "native" if native < _seconds(lambda: a_float @ b_float.T) else "float32"


def _seconds(run: Callable[[], object], repeats: int = 3) -> float:
    run()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def exact_chunks(w_OI: Tensor) -> list[int]:
    """Ends of the chunks of input features whose float32 products with any int8 are exact.

    A chunk is as long as 128 * sum|w| stays within 2**24 for every row of int8 `w_OI`.
    """
    sums_OI = w_OI.int().abs().cumsum(1, dtype=torch.int32)
    ends: list[int] = []
    start, features = 0, w_OI.shape[1]
    base_O1 = torch.zeros_like(sums_OI[:, :1])
    while start < features:
        within = ((sums_OI[:, start:] - base_O1) <= _LARGEST_ROW_SUM).all(0)
        start += int(within.sum())
        ends.append(start)
        base_O1 = sums_OI[:, start - 1 : start]
    return ends


class IntWeight:
    """An int8 weight [O, I] made ready for many products with integer activations.

    `resident`: keep a float32 copy (4 bytes a value) where the float32 kernel runs; else the
    weight is cast piece by piece in every product.
    """

    def __init__(self, w_OI: Tensor, *, resident: bool, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or fastest_kernel(w_OI.device)
        self.w_OI = w_OI
        self._ends = exact_chunks(w_OI) if self.kernel == "float32" else []
        self._float_OI = w_OI.float() if resident and self.kernel == "float32" else None

    def product(self, q_MI: Tensor) -> Tensor:
        """Integers `q_MI` (-128..127, in float32) times the transposed weight: float32 [M, O].

        Sums beyond 2**24 are rounded to the nearest float32, once.
        """
        if self.kernel == "native":
            return native_mm(q_MI.to(torch.int8), self.w_OI).float()
        if self._float_OI is not None:
            return self._chunked(q_MI, self._float_OI)
        rows = max(1, _CAST_ELEMENTS // max(1, self.w_OI.shape[1]))
        pieces = [self._chunked(q_MI, piece.float()) for piece in torch.split(self.w_OI, rows)]
        return torch.cat(pieces, dim=1)

    def _chunked(self, q_MI: Tensor, w_OI: Tensor) -> Tensor:
        if len(self._ends) == 1:
            return functional.linear(q_MI, w_OI)
        total_MO = q_MI.new_zeros(q_MI.shape[0], w_OI.shape[0], dtype=torch.float64)
        start = 0
        for end in self._ends:
            total_MO += functional.linear(q_MI[:, start:end], w_OI[:, start:end])
            start = end
        return total_MO.float()
