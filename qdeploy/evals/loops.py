"""Has a text fallen into a loop, and where did the loop begin?

Two signs, either is enough:
- the tokens end in one block repeated: a single token 8 times, a block of 2 to 8 tokens 6 times,
  a block of 9 to 256 tokens 3 times and over 48 tokens at least. The shape (block length, number
  of repeats, at the tail) is that of `check_sequence_repetition` in vLLM's scheduler
  (vllm/v1/core/sched/utils.py); the numbers are stricter for short blocks, which tables and code
  repeat legitimately.
- 1 to 4 sentences in a row come 3 times in succession (numbering ignored) anywhere. In human text
  even two equal sentences in a row are rare (0.02 %: Xu et al., Learning to Break the Loop, 2022).
"""

from __future__ import annotations

from collections.abc import Sequence

from qdeploy.evals.text import sentences

_LONGEST_BLOCK = 256
_LONG_BLOCK_REPEATS = 3
_LONG_BLOCK_TOKENS = 48
_SENTENCES_IN_A_BLOCK = 4
_SENTENCE_REPEATS = 3
_SENTENCE_CHARS = 12


def loop_onset(token_ids: Sequence[int], text: str) -> int | None:
    """The token position at which the loop began, None when there is none.

    For a loop of sentences that ended before the text did, the position is estimated from the
    sentence's place among the characters.
    """
    tail = _tail_loop(token_ids)
    if tail is not None:
        return tail
    start = _sentence_loop(text)
    return None if start is None else round(start / len(text) * len(token_ids))


def _tail_loop(ids: Sequence[int]) -> int | None:
    for period in range(1, min(_LONGEST_BLOCK, len(ids) // _LONG_BLOCK_REPEATS) + 1):
        start = len(ids) - period
        while start > 0 and ids[start - 1] == ids[start - 1 + period]:
            start -= 1
        if len(ids) - start >= _loop_tokens(period):
            return start
    return None


def _loop_tokens(period: int) -> int:
    """How many tokens a loop of this period must cover."""
    if period == 1:
        return 8
    if period <= 8:
        return 6 * period
    return max(_LONG_BLOCK_REPEATS * period, _LONG_BLOCK_TOKENS)


def _sentence_loop(text: str) -> int | None:
    """The character at which a repeated block of sentences starts, None without one."""
    places = sentences(text)
    said = [sentence for _, sentence in places]
    starts: list[int] = []
    for period in range(1, _SENTENCES_IN_A_BLOCK + 1):
        run = 0
        for index in range(len(said) - period):
            run = run + 1 if said[index] == said[index + period] else 0
            first = index - run + 1
            block = "".join(said[first : first + period]).replace(" ", "")
            if run >= (_SENTENCE_REPEATS - 1) * period and len(block) >= _SENTENCE_CHARS:
                starts.append(places[first][0])
                break
    return min(starts, default=None)
