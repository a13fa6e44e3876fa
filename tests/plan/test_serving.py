from __future__ import annotations

import pytest

from qdeploy.core.errors import InputError
from qdeploy.models.shape import ModelShape
from qdeploy.models.shipped_shapes import shipped_shape
from qdeploy.plan.serving import kv_cache_bytes, serving_bytes, serving_weights_bytes


def shape(name: str) -> ModelShape:
    known = shipped_shape(name)
    assert known is not None
    return known.shape


def test_kv_cache_against_a_slow_sum() -> None:
    gemma = shape("gemma-3-1b")
    for context in (1, 512, 513, 4000):
        slow = 0
        for layer in range(26):
            windowed = (layer + 1) % 6 != 0
            slow += 2 * 1 * 256 * 2 * (min(context, 512) if windowed else context)
        assert kv_cache_bytes(gemma, context) == slow


def test_kv_cache_of_llama_and_mistral() -> None:
    assert kv_cache_bytes(shape("llama-2-7b"), 4096) == 2 * 2**30
    assert kv_cache_bytes(shape("llama-3.1-8b"), 8192) == 2**30
    assert kv_cache_bytes(shape("llama-3.1-8b"), 8192, 1) == 2**29
    mistral = shape("mistral-7b")
    assert kv_cache_bytes(mistral, 32768) == kv_cache_bytes(mistral, 4096)


def test_weights_of_both_schemes() -> None:
    llama = shape("llama-2-7b")
    linears = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    channels = 32 * (4 * 4096 + 2 * 11008 + 4096)
    assert serving_weights_bytes(llama, "bf16") == 2 * llama.parameters
    rest = llama.parameters - linears
    assert serving_weights_bytes(llama, "int8") == linears + 2 * channels + 2 * rest


def test_total_is_the_sum_and_grows_with_load() -> None:
    llama = shape("llama-3.1-8b")
    one = serving_bytes(llama, 16 * 10**9, 1, 4096)
    many = serving_bytes(llama, 16 * 10**9, 16, 4096)
    for parts in (one, many):
        assert parts.total_bytes == (
            parts.weights_bytes
            + parts.kv_cache_bytes
            + parts.activations_bytes
            + parts.framework_bytes
        )
    assert many.kv_cache_bytes == 16 * one.kv_cache_bytes


@pytest.mark.parametrize(("concurrency", "context"), [(0, 1), (1, 0), (-1, 5)])
def test_bad_sizes(concurrency: int, context: int) -> None:
    with pytest.raises(InputError):
        serving_bytes(shape("gpt2"), 1, concurrency, context)
    with pytest.raises(InputError):
        serving_bytes(shape("gpt2"), -1, 1, 1)
