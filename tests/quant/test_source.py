import pytest
import torch

from qdeploy.quant.source import all_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_value_is_found_anywhere(dtype: torch.dtype, bad: float) -> None:
    for position in (0, 7, 11):
        tensor = torch.linspace(-3, 3, 12).to(dtype)
        assert all_finite(tensor)
        tensor[position] = bad
        assert not all_finite(tensor.reshape(3, 4))


def test_integers_and_empty_tensors_are_finite() -> None:
    assert all_finite(torch.tensor([1, 2]))
    assert all_finite(torch.empty(0, 4))
