"""A key-value cache that grows in place.

transformers' `DynamicLayer` concatenates at every step, which copies all keys and values for each
new token. `GrowingLayer` writes into a buffer with room to spare and copies only when that is full.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

_LEAST_ROOM = 64


class GrowingLayer(DynamicLayer):
    """Keys and values [B, K, T, D] of one layer as views of larger buffers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the new keys and values [B, K, T_new, D]; gives all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [key_states[:, :, :0], value_states[:, :, :0]]
        past = self.get_seq_length()
        length = past + key_states.shape[-2]
        if length > self._buffers[0].shape[-2]:
            self._grow(length + max(_LEAST_ROOM, length // 2), past)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, past:length] = new
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` of the batch, in that order; a row may be named twice."""
        length = self.get_seq_length()
        self._buffers = [buffer[indices] for buffer in self._buffers]
        if self._buffers:
            self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def _grow(self, capacity: int, past: int) -> None:
        old = self._buffers
        self._buffers = [
            buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[-1]) for buffer in old
        ]
        for buffer, before in zip(self._buffers, old, strict=True):
            buffer[:, :, :past] = before[:, :, :past]


def new_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model; sliding-window and other special layers stay transformers'."""
    cache = DynamicCache(config=config)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def select_rows(cache: DynamicCache, rows: list[int]) -> DynamicCache:
    """A cache with the given rows of `cache`, which stays as it is."""
    selected = copy.copy(cache)
    selected.layers = [copy.copy(layer) for layer in cache.layers]
    selected.batch_select_indices(torch.tensor(rows))
    return selected
