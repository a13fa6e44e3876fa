"""The growing cache against transformers' concatenating one."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, Gemma3TextConfig, LlamaConfig
from transformers.cache_utils import DynamicSlidingWindowLayer

from qdeploy.runtime.cache import GrowingLayer, new_cache, select_rows

CONFIG = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


def fill(caches, tokens: int, rows: int) -> None:
    for layer in range(2):
        keys, values = torch.randn(2, rows, 2, tokens, 8)
        results = [cache.update(keys, values, layer) for cache in caches]
        for result in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], result, strict=True))


@pytest.mark.parametrize("first", [1, 63, 64, 65])
def test_same_as_concatenation(first):
    caches = [DynamicCache(config=CONFIG), new_cache(CONFIG)]
    for tokens in (first, 1, 70, 1, 1):
        fill(caches, tokens, rows=3)
    for cache in caches:
        cache.batch_select_indices(torch.tensor([2, 0]))
    for tokens in (1, 200, 1):
        fill(caches, tokens, rows=2)
    assert caches[1].get_seq_length() == first + 73 + 202


def test_selected_rows_leave_the_source_alone():
    cache = new_cache(CONFIG)
    fill([cache], 5, rows=2)
    before = [layer.keys.clone() for layer in cache.layers]
    selected = select_rows(cache, [1, 1, 0])
    assert torch.equal(selected.layers[0].keys, before[0][[1, 1, 0]])
    fill([selected], 3, rows=3)
    assert cache.get_seq_length() == 5
    assert all(
        torch.equal(layer.keys, old) for layer, old in zip(cache.layers, before, strict=True)
    )


def test_sliding_layers_stay_as_they_are():
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(num_hidden_layers=2, layer_types=kinds, sliding_window=7)
    layers = new_cache(config).layers
    assert [type(layer) for layer in layers] == [DynamicSlidingWindowLayer, GrowingLayer]
