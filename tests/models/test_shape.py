"""What a shape says of itself, against sums written out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from qdeploy.models.shape import ModelShape

H, F, V = 8, 20, 11
BASE: dict[str, Any] = {
    "name": "x", "family": "llama", "layers": 5, "hidden_size": H, "heads": 4, "kv_heads": 2,
    "head_dim": 3, "intermediate_size": F, "vocab_size": V, "max_positions": 7,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"experts": 6, "experts_per_token": 2, "expert_intermediate_size": 9}


def shape(**changes: Any) -> ModelShape:
    return ModelShape(**{**BASE, **changes})


def test_llama_written_out() -> None:
    attention = 4 * 3 * H + 2 * 3 * H + 2 * 3 * H + H * 4 * 3
    block = attention + 3 * H * F + 2 * H
    assert shape().block_parameters == block
    assert shape().parameters == shape().active_parameters == 5 * block + 2 * V * H + H
    assert shape(tied_embeddings=True).parameters == 5 * block + V * H + H
    assert shape().moe_layers == shape().moe_block_parameters == shape().expert_parameters == 0


def test_embeddings_head_and_pooler() -> None:
    table = shape(learned_positions=True, position_offset=2, token_types=2).embedding_parameters
    assert table == (V + 7 + 2 + 2) * H
    assert shape(head_bias=True).head_parameters == V * H + V
    assert shape(head_bias=True, tied_embeddings=True).head_parameters == V
    classifier = {"task": "classification", "labels": 3, "causal": False, "head_bias": True}
    assert shape(**classifier).head_parameters == 3 * H + 3
    added = shape(pooler=True, embedding_norm=True).parameters - shape().parameters
    assert added == H * H + H + H
    assert shape().parameters - shape(final_norm=False).parameters == H


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ({}, H),
        ({"norm": "layer"}, H),
        ({"norm": "layer", "norm_bias": True}, 2 * H),
        ({"norm": "layer", "norm_weight": False}, 0),
    ],
)
def test_norms(kind: dict[str, Any], numbers: int) -> None:
    assert shape(**kind).norm_parameters == numbers
    without = shape(**kind, norms_per_block=0).block_parameters
    assert shape(**kind, norms_per_block=4).block_parameters == without + 4 * numbers


def test_norms_of_queries_and_keys() -> None:
    plain = shape().attention_parameters
    assert shape(qk_norm=True).attention_parameters == plain + 3 + 3
    assert shape(qk_norm_whole=True).attention_parameters == plain + 4 * 3 + 2 * 3
    assert shape(attention_sinks=True).attention_parameters == plain + 4


@pytest.mark.parametrize("dense_layers", [0, 1, 4, 5])
@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_experts_layer_by_layer(dense_layers: int, every: int) -> None:
    moe = shape(
        **EXPERTS, dense_layers=dense_layers, moe_every=every,
        shared_expert_intermediate_size=4, shared_expert_gate=True,
    )  # fmt: skip
    expert, router, shared = 3 * H * 9, 6 * H, 3 * H * 4 + H
    total = active = V * H * 2 + H
    for layer in range(5):
        mlp = used = 3 * H * F
        if layer >= dense_layers and (layer + 1) % every == 0:
            mlp = 6 * expert + router + shared
            used = 2 * expert + router + shared
        total += moe.attention_parameters + 2 * H + mlp
        active += moe.attention_parameters + 2 * H + used
    assert (moe.parameters, moe.active_parameters) == (total, active)


def test_biases_of_experts_and_router() -> None:
    biases = shape(**EXPERTS, expert_bias=True).moe_block_parameters
    assert biases - shape(**EXPERTS).moe_block_parameters == 6 * (2 * 9 + H) + 6


def test_block_of_most_layers() -> None:
    rare = shape(**EXPERTS, moe_every=3)
    assert rare.block_parameters == rare.dense_block_parameters


def test_latent_attention_written_out() -> None:
    latent = {
        "heads": 4, "kv_heads": 4, "head_dim": 5, "kv_lora_rank": 6, "qk_rope_head_dim": 2,
        "v_head_dim": 3,
    }  # fmt: skip
    keys_and_values = H * (6 + 2) + 6 + 6 * 4 * (5 - 2 + 3)
    rest = keys_and_values + 4 * 3 * H
    assert shape(**latent).attention_parameters == H * 4 * 5 + rest
    low_rank = shape(**latent, q_lora_rank=7)
    assert low_rank.attention_parameters == H * 7 + 7 + 7 * 4 * 5 + rest
    assert low_rank.kv_cache_bytes_per_token() == 5 * 4 * (5 + 3) * 2


def test_linears_and_their_names() -> None:
    fused = shape(fused_qkv=True, fused_gate_up=True, qkv_bias=True)
    assert fused.attention_linears == [("qkv_proj", 24, H, True), ("o_proj", H, 12, False)]
    assert fused.mlp_linears == [("gate_up_proj", 2 * F, H, False), ("down_proj", H, F, False)]
    plain = shape(gated_mlp=False, fused_gate_up=True, mlp_bias=True)
    assert plain.mlp_linears == [("up_proj", F, H, True), ("down_proj", H, F, True)]
    assert shape().shared_expert_linears == []
    named = shape(gated_mlp=False, fused_qkv=True, linear_names=("a", "b", "c", "d"))
    assert [one.name for one in named.attention_linears + named.mlp_linears] == list("abcd")
    with pytest.raises(ValidationError, match="names 3 linears, its block has 4"):
        shape(gated_mlp=False, fused_qkv=True, linear_names=("a", "b", "c"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "4 attention heads do not divide into 3"),
        ({"layers": 0}, "greater than 0"),
        ({"experts": 2}, "2 experts need experts_per_token"),
        ({"experts": 2, "experts_per_token": 3}, "cannot go to 3 of 2"),
        ({"task": "classification"}, "a classification model has 0 labels"),
        ({"labels": 2}, "a causal_lm model has 2 labels"),
        ({"rotary_dim": 4}, "wider than head_dim 3"),
        ({"sliding_window": 0}, "greater than 0"),
    ],
)
def test_senseless_shapes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        shape(**changes)
