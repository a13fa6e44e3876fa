from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB
from qdeploy.models.shape import ModelShape
from qdeploy.models.shipped_shapes import shipped_shape
from qdeploy.plan.gpu import find_gpu
from qdeploy.plan.rank import Rank
from qdeploy.plan.serving import ServingTarget, place, serving_bytes
from qdeploy.plan.terms.kv_cache import kv_cache_bytes
from qdeploy.plan.terms.serving_pass import batched_tokens, engine_bytes, pass_bytes
from qdeploy.plan.terms.serving_weights import serving_weights_bytes


def shape(name: str) -> ModelShape:
    known = shipped_shape(name)
    assert known is not None
    return known.shape


def blocks_touched(first: int, last: int) -> int:
    """Blocks of 16 tokens that hold tokens first..last."""
    return len({token // 16 for token in range(first, last + 1)})


@pytest.mark.parametrize("context", [1, 15, 16, 17, 511, 512, 513, 528, 4000])
def test_kv_cache_with_windows_against_a_slow_sum(context: int) -> None:
    gemma = shape("gemma-3-1b")
    slow = 0
    for layer in range(26):
        if (layer + 1) % 6 == 0:
            blocks = blocks_touched(0, context - 1)
        else:
            # The window slides: the most blocks that it touches while the text grows.
            blocks = max(
                blocks_touched(max(0, end - 511), end)
                for end in range(max(0, context - 40), context)
            )
            blocks = max(blocks, 33 if context > 528 else 0)
        slow += blocks * 16 * 2 * 1 * 256 * 2
    assert kv_cache_bytes(gemma, context) == slow


def test_kv_cache_of_llama_and_mistral() -> None:
    assert kv_cache_bytes(shape("llama-2-7b"), 4096) == 2 * 2**30
    assert kv_cache_bytes(shape("llama-3.1-8b"), 8192) == 2**30
    assert kv_cache_bytes(shape("llama-3.1-8b"), 8192, 1) == 2**29
    mistral = shape("mistral-7b")
    assert kv_cache_bytes(mistral, 32768) == 32 * (4096 + 16) * 8 * 128 * 2 * 2
    assert kv_cache_bytes(mistral, 4096) == 32 * 4096 * 8 * 128 * 2 * 2


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_tensor_parallelism_divides_heads_until_they_are_repeated(tensor: int, heads: int) -> None:
    llama = shape("llama-3.1-8b")
    assert kv_cache_bytes(llama, 160, tensor=tensor) == 32 * 160 * heads * 2 * 128 * 2


def test_latent_attention_keeps_the_compressed_form_whole_on_every_gpu() -> None:
    deepseek = shape("deepseek-v3")
    for tensor in (1, 8):
        assert kv_cache_bytes(deepseek, 4096, tensor=tensor) == 61 * 4096 * (512 + 64) * 2


def test_weights_of_all_forms() -> None:
    llama = shape("llama-2-7b")
    linears = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    channels = 32 * (4 * 4096 + 2 * 11008 + 4096)
    rest = llama.parameters - linears
    assert serving_weights_bytes(Rank(llama), "bf16") == 2 * llama.parameters
    assert serving_weights_bytes(Rank(llama), "int8") == linears + 2 * channels + 2 * rest
    groups = linears // 128
    int4 = linears // 2 + 2 * groups + groups // 2 + 2 * rest
    assert serving_weights_bytes(Rank(llama), "int4") == int4


def test_all_experts_are_resident_and_quantized_on_wish() -> None:
    mixtral = shape("mixtral-8x7b")
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    experts = 32 * 8 * 3 * 4096 * 14336
    rest = mixtral.parameters - attention - experts
    assert rest == 2 * 32000 * 4096 + 65 * 4096 + 32 * 8 * 4096
    attention_scales = 2 * 32 * (4096 + 1024 + 1024 + 4096)
    expert_scales = 2 * 32 * 8 * (2 * 14336 + 4096)
    rank = Rank(mixtral)
    kept = attention + attention_scales + 2 * experts + 2 * rest
    assert serving_weights_bytes(rank, "int8", experts=False) == kept
    every = attention + attention_scales + experts + expert_scales + 2 * rest
    assert serving_weights_bytes(rank, "int8") == every
    assert serving_weights_bytes(rank, "bf16") == 2 * mixtral.parameters


def test_tensor_parallelism_divides_weights_but_not_norms() -> None:
    llama = shape("llama-2-7b")
    norms = 65 * 4096
    half = (llama.parameters - norms) // 2 + norms
    assert serving_weights_bytes(Rank(llama, tensor=2), "bf16") == 2 * half


def test_a_pass_is_the_residual_stream_and_the_larger_of_block_and_sampler() -> None:
    llama = shape("llama-3-8b")
    for tokens, requests, tensor in ((2048, 1, 1), (2048, 1, 2), (1, 64, 1)):
        slow = 2 * tokens * (4096 + 4096)
        block = 2 * tokens * (14336 + 14336 + 14336) // tensor
        sampler = requests * 128256 * (2 + 4 + 4 + 8 + 4 + 4 + 4)
        assert pass_bytes(llama, tokens, requests, tensor=tensor) == slow + max(block, sampler)


def test_the_pass_of_a_published_run_lies_in_the_interval() -> None:
    """vllm PR 10511: Meta-Llama-3-8B, 8192 tokens, 256 requests: 1.26 GiB of activations."""
    found = pass_bytes(shape("llama-3-8b"), 8192, 256)
    assert 0.5 * found <= 1.26 * GIB <= 1.5 * found


def test_a_mixture_passes_k_experts_a_token() -> None:
    mixtral = shape("mixtral-8x7b")
    inner = 2 * (3 * 14336 + 4096)
    assert pass_bytes(mixtral, 100, 1) == 2 * 100 * 2 * 4096 + 2 * 100 * inner


@pytest.mark.parametrize(
    ("gpu", "tokens"), [("H100-80GB", 8192), ("A100-80GB", 2048), ("L4", 2048), ("B200", 8192)]
)
def test_the_longest_pass_by_the_gpu(gpu: str, tokens: int) -> None:
    assert batched_tokens(find_gpu(gpu)[0]) == tokens


def test_total_is_the_sum_and_grows_with_load() -> None:
    llama = shape("llama-3.1-8b")
    one = serving_bytes(llama, 16 * 10**9, ServingTarget(concurrency=1))
    many = serving_bytes(llama, 16 * 10**9, ServingTarget(concurrency=16))
    for parts in (one, many):
        assert parts.total_bytes == sum(parts.parts.values())
        spread = parts.weights_bytes // 100 + parts.kv_cache_bytes // 100
        spread += parts.activations_bytes // 2 + 60 * parts.engine_bytes // 100
        assert parts.high_bytes == parts.total_bytes + spread
    assert many.kv_cache_bytes == 16 * one.kv_cache_bytes
    eight = serving_bytes(llama, 0, ServingTarget(concurrency=16, kv_bits=8))
    assert 2 * eight.kv_cache_bytes == many.kv_cache_bytes
    assert engine_bytes(tensor=2) > engine_bytes()


def test_a_model_is_divided_by_the_smallest_power_of_two_that_holds_it() -> None:
    gpu, _ = find_gpu("A100-80GB")
    rank, target = Rank(shape("llama-3.1-70b")), ServingTarget()
    placed = place(rank, "bf16", target, gpu, 8)
    assert (placed.tensor, placed.fits) == (4, True)
    assert placed.room_bytes == gpu.memory_bytes * 90 // 100
    too_few = place(rank, "bf16", target, gpu, 3)
    assert (too_few.tensor, too_few.fits) == (2, False)
    assert place(rank, "int8", target, gpu, 8).tensor == 2
    occupied = place(rank, "int8", target, gpu, 8, occupied_bytes=40 * GIB)
    assert occupied.room_bytes == gpu.memory_bytes - 40 * GIB
    assert occupied.tensor == 4


def test_a_degree_that_does_not_divide_the_heads_is_not_used() -> None:
    gpu, _ = find_gpu("L4")
    falcon = shape("falcon-7b")  # 71 heads
    assert place(Rank(falcon), "bf16", ServingTarget(concurrency=256), gpu, 8).tensor == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency": 0},
        {"context": 0},
        {"context": -5},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"count": 0},
        {"kv_bits": 4},
        {"memory_percent": 0},
        {"memory_percent": 101},
        {"served_as": ()},
        {"served_as": ("int3",)},
    ],
)
def test_nonsense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ServingTarget(**fields)


def test_negative_weights_and_encoders_are_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        serving_bytes(shape("gpt2"), -1, ServingTarget())
    with pytest.raises(InputError, match="does not generate text"):
        serving_bytes(shape("bert-base-uncased"), 1, ServingTarget())
