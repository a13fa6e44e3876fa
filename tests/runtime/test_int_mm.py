"""Every kernel against int64 arithmetic, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qdeploy.runtime.int_mm import (
    IntWeight,
    _pad_for_cuda,
    exact_chunks,
    fastest_kernel,
    float32_mm,
    int_mm,
    native_mm,
)

SHAPES = [
    (1, 1, 1), (3, 1023, 5), (1, 1024, 7), (17, 1025, 3), (5, 3000, 11), (64, 576, 33), (0, 16, 4),
]  # fmt: skip


def reference(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    return a_MK.long() @ b_NK.long().T


def random_int8(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)


@pytest.mark.parametrize("product", [int_mm, float32_mm, native_mm])
@pytest.mark.parametrize(("M", "K", "N"), SHAPES)
def test_products_equal_int64(product, M, K, N):
    a_MK, b_NK = random_int8(M, K, seed=1), random_int8(N, K, seed=2)
    result = product(a_MK, b_NK)
    assert result.dtype == torch.int32
    assert torch.equal(result.long(), reference(a_MK, b_NK))


@pytest.mark.parametrize("product", [int_mm, float32_mm, native_mm])
@pytest.mark.parametrize("K", [1, 1023, 1024, 1025, 3000, 4097])
def test_extreme_values(product, K):
    lowest = torch.full((2, K), -128, dtype=torch.int8)
    mixed = lowest.clone()
    mixed[:, ::2] = 127
    for a_MK, b_NK in [(lowest, lowest), (lowest, mixed), (mixed, mixed)]:
        assert torch.equal(product(a_MK, b_NK).long(), reference(a_MK, b_NK))


@pytest.mark.parametrize(("M", "K", "N"), [(1, 1, 1), (33, 24, 9), (16, 575, 8)])
def test_padding_for_cuda_changes_nothing(M, K, N):
    a_MK, b_NK = random_int8(M, K, seed=3), random_int8(N, K, seed=4)
    wide_a, wide_b = _pad_for_cuda(a_MK, b_NK)
    assert wide_a.shape[0] > 16
    assert wide_a.shape[1] % 8 == 0 == wide_b.shape[0] % 8
    assert torch.equal(reference(wide_a, wide_b)[:M, :N], reference(a_MK, b_NK))


def test_kernel_choice_is_one_of_the_two_and_stays():
    device = torch.device("cpu")
    assert fastest_kernel(device) in ("native", "float32")
    assert fastest_kernel(device) == fastest_kernel(device)


@pytest.mark.parametrize("K", [1, 1024, 1025, 3000])
def test_chunks_stay_within_the_exact_range(K):
    for w_OI in (random_int8(6, K, seed=5), torch.full((3, K), -128, dtype=torch.int8)):
        ends = exact_chunks(w_OI)
        assert ends[-1] == K
        start = 0
        for end in ends:
            sums_O = w_OI[:, start:end].long().abs().sum(1)
            assert int(sums_O.max()) * 128 <= 2**24
            start = end


def test_worst_weight_needs_chunks_of_1024_and_a_mild_one_a_single_chunk():
    assert exact_chunks(torch.full((2, 2500), -128, dtype=torch.int8)) == [1024, 2048, 2500]
    assert exact_chunks(torch.full((2, 2500), 30, dtype=torch.int8)) == [2500]
    assert exact_chunks(torch.zeros(2, 0, dtype=torch.int8)) == []


@pytest.mark.parametrize("kernel", ["native", "float32"])
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("K", [1, 1024, 1025, 4097])
def test_int_weight_equals_int64(kernel, resident, K):
    w_OI = torch.cat([random_int8(6, K, seed=6), torch.full((1, K), -128, dtype=torch.int8)])
    q_MI = torch.cat([random_int8(4, K, seed=7), torch.full((1, K), -128, dtype=torch.int8)])
    weight = IntWeight(w_OI, resident=resident, kernel=kernel)
    # float32 is the promised result type, so the integers are rounded to it once.
    assert torch.equal(weight.product(q_MI.float()), reference(q_MI, w_OI).float())


def test_int_weight_cast_in_pieces(monkeypatch):
    monkeypatch.setattr("qdeploy.runtime.int_mm._CAST_ELEMENTS", 100)
    w_OI, q_MI = random_int8(23, 40, seed=8), random_int8(3, 40, seed=9)
    weight = IntWeight(w_OI, resident=False, kernel="float32")
    assert torch.equal(weight.product(q_MI.float()), reference(q_MI, w_OI).float())
