"""Losses against every tensor of their peak, written out."""

from __future__ import annotations

import pytest

from qdeploy.plan.losses import LossRun, find_loss

RUNS = [
    LossRun(tokens, vocabulary, hidden, element, head_trained=trained)
    for tokens, vocabulary, hidden in ((1, 1, 1), (7, 33, 5), (4096, 151936, 896), (4097, 96, 8))
    for element in (2, 4)
    for trained in (False, True)
]


def size(*tensors: tuple[int, int]) -> int:
    """Bytes of tensors given as (numbers, bytes of one)."""
    return sum(numbers * element for numbers, element in tensors)


def next_power_of_2(number: int) -> int:
    power = 1
    while power < number:
        power *= 2
    return power


@pytest.mark.parametrize("run", RUNS)
def test_whole_logits(run: LossRun) -> None:
    logits = run.tokens * run.vocabulary
    fp32, own = (logits, 4), (logits, run.compute_bytes)
    assert find_loss("hf").loss_bytes(run) == size(fp32, fp32, fp32, fp32)
    assert find_loss("plain").loss_bytes(run) == size(own, own, own, own)


@pytest.mark.parametrize("run", RUNS)
def test_chunked_has_an_fp32_chain_in_one_of_eight_chunks(run: LossRun) -> None:
    chunks = [len(range(start, run.tokens, 8)) for start in range(8)]
    chain = (max(chunks) * run.vocabulary, 4)
    whole = (run.tokens * run.vocabulary, run.compute_bytes)
    assert find_loss("chunked").loss_bytes(run) == size(whole, whole, chain, chain, chain)


@pytest.mark.parametrize("run", RUNS)
def test_liger(run: LossRun) -> None:
    chunks = (run.vocabulary + run.hidden_size - 1) // run.hidden_size
    rows = min(run.tokens, next_power_of_2((run.tokens + chunks - 1) // chunks))
    element = run.compute_bytes
    expected = size(
        (rows * run.vocabulary, element), (run.tokens * run.hidden_size, element), (run.tokens, 4)
    )
    if run.head_trained:
        expected += size((run.vocabulary * run.hidden_size, element))
    assert find_loss("liger").loss_bytes(run) == expected


@pytest.mark.parametrize("run", RUNS)
def test_trl_tile_and_fp32_gradients(run: LossRun) -> None:
    element, states = run.compute_bytes, run.tokens * run.hidden_size
    tensors = [(min(run.tokens, 4096) * 32768, element), (states, element), (states, 4)]
    tensors.append((11 * run.tokens, 4))
    if element == 2:
        tensors.append((states, 2))
    if run.head_trained:
        head = run.vocabulary * run.hidden_size
        tensors += [(head, 4)] + [(head, 2)] * (element == 2)
    assert find_loss("trl").loss_bytes(run) == size(*tensors)


@pytest.mark.parametrize("run", RUNS)
def test_cut_has_no_logits(run: LossRun) -> None:
    element = run.compute_bytes
    expected = size((run.tokens * run.hidden_size, element), (run.tokens, 16))
    if run.head_trained:
        expected += size((run.vocabulary * run.hidden_size, element))
    assert find_loss("cut").loss_bytes(run) == expected
    more_words = find_loss("cut").loss_bytes(
        LossRun(run.tokens, 10 * run.vocabulary, run.hidden_size, element, head_trained=False)
    )
    assert more_words == size((run.tokens * run.hidden_size, element), (run.tokens, 16))
