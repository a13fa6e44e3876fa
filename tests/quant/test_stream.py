import pytest
import torch

from qdeploy.core.errors import RunError
from qdeploy.quant.stream import Stream, StreamBatch, sample_positions


def test_sampled_positions_are_real_and_spread() -> None:
    masks = [torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([1, 1, 1, 1, 1, 1]).bool()]
    assert [p.tolist() for p in sample_positions(masks, 100)] == [[0, 1], [0, 1, 2, 3, 4, 5]]
    assert [p.tolist() for p in sample_positions(masks, 3)] == [[0], [2, 5]]
    assert [p.tolist() for p in sample_positions(masks, 1)] == [[0], []]


def stream(hidden: torch.Tensor, real: list[int]) -> Stream:
    mask = torch.tensor(real).bool()
    return Stream([StreamBatch(hidden, mask, mask.nonzero().flatten(), [])], torch.device("cpu"))


def test_what_arises_in_padding_does_not_spread() -> None:
    s = stream(torch.zeros(1, 3, 2), [1, 1, 0])
    out = torch.ones(1, 3, 2)
    out[0, 2] = float("nan")
    s.advance(s.batches[0], out, "layers.0")
    assert s.batches[0].hidden.tolist() == [[[1, 1], [1, 1], [0, 0]]]


def test_non_finite_values_of_real_tokens_stop_the_run() -> None:
    s = stream(torch.zeros(1, 2, 2), [1, 1])
    with pytest.raises(RunError, match=r"layers\.0 gives NaN or infinity"):
        s.advance(s.batches[0], torch.full((1, 2, 2), float("inf")), "layers.0")
