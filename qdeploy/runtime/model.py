"""A loaded causal language model and its forward pass over left-padded batches."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from qdeploy.core.errors import InputError, RunError
from qdeploy.runtime.cache import new_cache, select_rows

DEFAULT_BATCH_TOKENS = 16384

_PADDING_OF_A_STEP = 24
"""A forward pass over few rows takes about as long as computing so many tokens of padding."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode with what running it needs to know."""

    name: str
    """The candidate's name, for messages."""
    model: PreTrainedModel
    tokenizer: Any
    """The folder's transformers tokenizer."""
    end_ids: frozenset[int]
    """Token ids that end an answer."""
    max_positions: int

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.model.device

    @cached_property
    def cache_argument(self) -> str:
        """How the model's forward calls its cache; renamed in transformers 5.24."""
        arguments = inspect.signature(type(self.model).forward).parameters
        return "cache" if "cache" in arguments else "past_key_values"

    def check_prompts(self, prompts: Sequence[list[int]], new_tokens: Sequence[int]) -> None:
        """Raise InputError for a prompt that is empty, holds an unknown id, or does not fit.

        `new_tokens[i]` tokens follow prompt i.
        """
        vocab_size = _rows(self.model.get_input_embeddings())
        for index, (prompt, new) in enumerate(zip(prompts, new_tokens, strict=True)):
            if not prompt:
                raise InputError(f"{self.name}: prompt {index} has no tokens")
            if min(prompt) < 0 or max(prompt) >= vocab_size:
                raise InputError(
                    f"{self.name}: prompt {index} holds a token id outside 0..{vocab_size - 1}",
                    hint="render the prompts with this model's own tokenizer",
                )
            if len(prompt) + new > self.max_positions:
                raise InputError(
                    f"{self.name}: prompt {index} has {len(prompt)} tokens, with {new} new ones "
                    f"that is more than the model's {self.max_positions} positions",
                    hint="leave the prompt out or allow fewer new tokens",
                )

    def check_finite(self, largest: Tensor) -> None:
        """Raise RunError when a largest logit is NaN or infinite."""
        if not bool(largest.isfinite().all()):
            raise RunError(
                f"{self.name}: the model computes NaN or infinity, so its answers mean nothing",
                hint="check the weights: a scale may be zero or a tensor damaged",
            )


class PaddedBatch:
    """Rows of different length that advance together: a cache, a mask and positions.

    Prompts are padded on the left, so that the next token of every row comes at the same index.
    B rows, T tokens of a row so far with padding, V vocabulary.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[list[int]], room: int) -> None:
        """`room`: tokens that may follow the longest prompt."""
        self._loaded = loaded
        width = max(map(len, prompts))
        device = loaded.device
        self._cache = new_cache(loaded.model.config)
        self._mask_BT = torch.ones(len(prompts), width + room, dtype=torch.long, device=device)
        self._width = 0
        self._length_B1 = torch.zeros(len(prompts), 1, dtype=torch.long, device=device)
        pads = [width - len(prompt) for prompt in prompts]
        for row, pad in enumerate(pads):
            self._mask_BT[row, :pad] = 0
        self._prompt_BT = torch.tensor(
            [[0] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)], device=device
        )

    def prefill(self) -> Tensor:
        """Run the prompts; logits [B, V] of the token after each."""
        width = self._prompt_BT.shape[1]
        mask_BT = self._mask_BT[:, :width]
        positions_BT = (mask_BT.cumsum(1) - 1).clamp_(min=0)
        self._length_B1 = mask_BT.sum(1, keepdim=True)
        return self._forward(self._prompt_BT, positions_BT, keep=1)[:, -1]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append one token to every row; logits [B, V] of the token after it."""
        positions_B1 = self._length_B1
        self._length_B1 = positions_B1 + 1
        return self._forward(tokens_B[:, None], positions_B1, keep=1)[:, -1]

    def extend(self, rows: list[int], tokens: Sequence[list[int]]) -> Tensor:
        """Logits [R, T_new, V] of `tokens[i]` put after row `rows[i]`, padded on the right.

        The batch itself stays as it is.
        """
        longest = max(map(len, tokens))
        other = self._select(rows)
        device = self._loaded.device
        tokens_RT = torch.tensor(
            [row + [0] * (longest - len(row)) for row in tokens], device=device
        )
        for row, ids in enumerate(tokens):
            other._mask_BT[row, self._width + len(ids) :] = 0
        positions_RT = other._length_B1 + torch.arange(longest, device=device)
        return other._forward(tokens_RT, positions_RT.clamp_(max=self._loaded.max_positions - 1))

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        index = torch.tensor(rows, device=self._loaded.device)
        self._cache.batch_select_indices(index)
        self._mask_BT, self._length_B1 = self._mask_BT[index], self._length_B1[index]

    def _select(self, rows: list[int]) -> PaddedBatch:
        other = object.__new__(PaddedBatch)
        other.__dict__.update(self.__dict__)
        other._cache = select_rows(self._cache, rows)
        index = torch.tensor(rows, device=self._loaded.device)
        other._mask_BT, other._length_B1 = self._mask_BT[index], self._length_B1[index]
        return other

    def _forward(self, tokens_BT: Tensor, positions_BT: Tensor, keep: int = 0) -> Tensor:
        self._width += tokens_BT.shape[1]
        output = self._loaded.model(
            input_ids=tokens_BT,
            attention_mask=self._mask_BT[:, : self._width],
            position_ids=positions_BT,
            use_cache=True,
            logits_to_keep=keep,
            **{self._loaded.cache_argument: self._cache},
        )
        logits: Tensor = output.logits
        return logits


def batches(
    lengths: Sequence[int], rows: Sequence[int], batch_tokens: int, new_tokens: int
) -> list[list[int]]:
    """Indices of items grouped into batches: longest first, by length alone.

    Item i makes `rows[i]` rows of `lengths[i]` tokens, of which up to `new_tokens` come one by one;
    a batch holds at most `batch_tokens` tokens with padding, or one item, and no more padding than
    a batch more would cost. The grouping depends on nothing else, so that all candidates get the
    same batches. Raises InputError unless `batch_tokens` is positive.
    """
    if batch_tokens < 1:
        raise InputError(f"batch_tokens must be positive, found {batch_tokens}")
    groups: list[list[int]] = []
    used = longest = padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        full = (used + rows[index]) * longest > batch_tokens
        padding += rows[index] * (longest - lengths[index])
        if not groups or full or padding > _PADDING_OF_A_STEP * (new_tokens + 1):
            groups.append([])
            used, longest, padding = 0, lengths[index], 0
        groups[-1].append(index)
        used += rows[index]
    return groups


def _rows(embedding: nn.Module) -> int:
    weight = embedding.weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]
