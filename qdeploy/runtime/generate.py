"""Greedy decoding in batches.

Sampling settings of generation_config.json are not applied: the next token is always the likeliest
one. Rows that end leave the batch. A result depends on the prompts, the weights and `batch_tokens`
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from qdeploy.core.errors import InputError
from qdeploy.runtime.model import DEFAULT_BATCH_TOKENS, LoadedModel, PaddedBatch, batches

_TAIL_TOKENS = 8


@dataclass(frozen=True)
class Generation:
    """One answer."""

    token_ids: list[int]
    """All generated tokens, an ending one included."""
    text: str
    """Decoded without special tokens; up to the first stop string, which is left out."""
    finish_reason: Literal["stop", "length"]
    """stop: an ending token or a stop string came; length: the token budget was used up."""


@dataclass
class _Row:
    index: int
    token_ids: list[int] = field(default_factory=list)


@torch.no_grad()
def generate(
    loaded: LoadedModel,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    stop: list[str],
    on_done: Callable[[int, Generation], None],
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
) -> None:
    """Answer `prompts` (token ids) greedily; `on_done(index, generation)` as each ends.

    `batch_tokens` bounds the tokens of a batch, prompts and answers with padding. Raises
    InputError before anything runs when a prompt with its answer exceeds the model's positions or
    an option is wrong, RunError when the model computes NaN or infinity.
    """
    _check_options(max_new_tokens, stop)
    loaded.check_prompts(prompts, [max_new_tokens] * len(prompts))
    lengths = [len(prompt) + max_new_tokens for prompt in prompts]
    finish = _Finish(loaded, max_new_tokens, stop)
    for group in batches(lengths, [1] * len(prompts), batch_tokens, max_new_tokens):
        _run_batch(loaded, [_Row(index) for index in group], prompts, finish, on_done)


def _run_batch(
    loaded: LoadedModel,
    rows: list[_Row],
    prompts: Sequence[list[int]],
    finish: _Finish,
    on_done: Callable[[int, Generation], None],
) -> None:
    batch = PaddedBatch(loaded, [prompts[row.index] for row in rows], finish.max_new_tokens)
    logits_BV = batch.prefill()
    while True:
        largest_B, tokens_B = logits_BV.max(-1)
        loaded.check_finite(largest_B)
        going: list[int] = []
        for place, (row, token) in enumerate(zip(rows, tokens_B.tolist(), strict=True)):
            row.token_ids.append(token)
            generation = finish(row.token_ids)
            if generation is None:
                going.append(place)
            else:
                on_done(row.index, generation)
        if not going:
            return
        if len(going) < len(rows):
            batch.keep(going)
            rows = [rows[place] for place in going]
            tokens_B = tokens_B[going]
        logits_BV = batch.step(tokens_B)


class _Finish:
    """Decides whether an answer is complete."""

    def __init__(self, loaded: LoadedModel, max_new_tokens: int, stop: list[str]) -> None:
        self.max_new_tokens = max_new_tokens
        self._end_ids = loaded.end_ids
        self._tokenizer = loaded.tokenizer
        self._stop = stop
        # A stop string of n bytes that the newest token completes began at most n tokens ago
        # (special tokens aside, which decode to nothing).
        longest = max((len(text.encode()) for text in stop), default=0)
        self._tail = longest + _TAIL_TOKENS

    def __call__(self, token_ids: list[int]) -> Generation | None:
        """The finished answer, or None while it goes on; `token_ids` just grew by one."""
        if token_ids[-1] in self._end_ids:
            return Generation(token_ids, self._decode(token_ids), "stop")
        if self._stop and self._cut(self._decode(token_ids[-self._tail :])) is not None:
            text = self._decode(token_ids)
            cut = self._cut(text)
            if cut is not None:
                return Generation(token_ids, text[:cut], "stop")
        if len(token_ids) == self.max_new_tokens:
            return Generation(token_ids, self._decode(token_ids), "length")
        return None

    def _cut(self, text: str) -> int | None:
        places = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
        return min(places, default=None)

    def _decode(self, token_ids: list[int]) -> str:
        return decode(self._tokenizer, token_ids)


def decode(tokenizer: Any, token_ids: list[int]) -> str:
    """The text of `token_ids` without special tokens, spaces as the tokens have them."""
    text: str = tokenizer.decode(
        token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def _check_options(max_new_tokens: int, stop: list[str]) -> None:
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1, found {max_new_tokens}")
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise InputError(
            f"stop must be a list of non-empty strings, found {stop!r}",
            hint='write ["..."] even for one stop string',
        )
