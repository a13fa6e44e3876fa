import random

import pytest

from qdeploy.evals.loops import loop_onset


def slow_onset(ids: list[int]) -> int | None:
    """The definition: over all periods, is the tail the block repeated often enough?"""
    for period in range(1, 257):
        repeats = 8 if period == 1 else 6 if period <= 8 else 3
        need = max(repeats * period, 48 if period > 8 else 0)
        if need > len(ids):
            continue
        tail = ids[-need:]
        if all(tail[i] == tail[i - period] for i in range(period, need)):
            start = len(ids) - need
            while start > 0 and ids[start - 1] == ids[start - 1 + period]:
                start -= 1
            return start
    return None


@pytest.mark.parametrize("seed", range(60))
def test_tail_loops_against_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    head = [rng.randrange(1000) for _ in range(rng.randrange(30))]
    block = [rng.randrange(1000) for _ in range(rng.choice([1, 2, 3, 7, 8, 9, 16, 17, 100, 256]))]
    repeated = block * rng.choice([1, 2, 3, 5, 6, 7, 8])
    ids = head + repeated + block[: rng.randrange(len(block) + 1)]
    assert loop_onset(ids, "") == slow_onset(ids)


@pytest.mark.parametrize(("repeats", "onset"), [(7, None), (8, 2)])
def test_single_token(repeats: int, onset: int | None) -> None:
    assert loop_onset([1, 2] + [5] * repeats, "") == onset


def test_nine_tokens_must_cover_48() -> None:
    block = list(range(9))
    assert loop_onset(block * 5, "") is None
    assert loop_onset(block * 6, "") == 0


def test_empty() -> None:
    assert loop_onset([], "") is None


@pytest.mark.parametrize(
    ("text", "looped"),
    [
        ("We mix the flour. We mix the flour. We mix the flour. Then we rest.", True),
        ("We mix the flour. We mix the flour. Then we rest.", False),
        ("1. We mix the flour.\n2. We mix the flour.\n3. We mix the flour.\nThe end.", True),
        ("先把面粉和水搅拌均匀放好。" * 3 + "然后休息。", True),
        ("先把面粉和水搅拌均匀放好。" * 2 + "然后休息。", False),
        ("Stir well now. Wait one hour. " * 3 + "Done.", True),
        ("No. No. No. No. We will not.", False),
        ("| a | 1 |\n| b | 2 |\n| c | 3 |", False),
    ],
)
def test_repeated_sentences(text: str, looped: bool) -> None:
    ids = list(range(len(text)))
    onset = loop_onset(ids, text)
    assert (onset is not None) == looped
    assert onset in (None, 0)
