"""Senseless configs: one clear line each."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.models.config import activation, head_dim, rotary_dim, size, windows
from qdeploy.models.family import family_of, shape_of

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "intermediate_size": 112, "vocab_size": 101,
}  # fmt: skip
MOE: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}  # fmt: skip
MLA: dict[str, Any] = {
    **LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}  # fmt: skip
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm", "hidden_size": 48, "num_attention_heads": 6, "num_layers": 2,
    "ffn_hidden_size": 112, "padded_vocab_size": 101, "seq_length": 64,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model_type": "qwen", "hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 2,
    "intermediate_size": 112, "vocab_size": 101, "seq_length": 64,
}  # fmt: skip
OPT: dict[str, Any] = {
    "model_type": "opt", "hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 2,
    "ffn_dim": 112, "vocab_size": 101,
}  # fmt: skip


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without(LLAMA, "hidden_size"), "config of x has no key 'hidden_size'"),
        ({**LLAMA, "num_hidden_layers": None}, "has no key 'num_hidden_layers'"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers must be .* at least 1, found 0"),
        ({**LLAMA, "hidden_size": -48}, "hidden_size must be .* found -48"),
        ({**LLAMA, "vocab_size": "many"}, "vocab_size must be .* found 'many'"),
        ({**LLAMA, "vocab_size": 1e5}, "vocab_size must be .* found 100000.0"),
        ({**LLAMA, "vocab_size": True}, "vocab_size must be .* found True"),
        ({**LLAMA, "num_attention_heads": 7}, "hidden size 48 does not divide into 7 heads"),
        ({**LLAMA, "num_key_value_heads": 4}, "6 attention heads do not divide into 4 key-value"),
        ({**LLAMA, "hidden_act": "tanh"}, "unknown activation 'tanh'"),
        ({**LLAMA, "attention_dropout": 1.5}, "attention_dropout: .* less than 1"),
        ({**LLAMA, "attention_dropout": "no"}, "attention_dropout: .* valid number"),
        ({**MOE, "num_experts_per_tok": 5}, "a token cannot go to 5 of 4 experts"),
        ({**MOE, "mlp_only_layers": [1]}, "mlp_only_layers is not handled"),
        ({**MLA, "moe_layer_freq": 2}, "moe_layer_freq other than 1"),
        ({**MLA, "first_k_dense_replace": -1}, "first_k_dense_replace must be"),
        ({**CHATGLM, "position_encoding_2d": True}, "the first ChatGLM"),
        ({**CHATGLM, "multi_query_attention": True}, "no key 'multi_query_group_num'"),
        ({**QWEN, "intermediate_size": 111}, "intermediate_size 111 .* must be even"),
        ({**OPT, "word_embed_proj_dim": 24}, "OPT-350m's form"),
        ({**OPT, "do_layer_norm_before": False}, "OPT-350m's form"),
        ({**LLAMA, "model_type": "cohere", "use_qk_norm": True}, "use_qk_norm is not handled"),
        ({**LLAMA, "model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm is not"),
        ({**LLAMA, "vision_config": {"hidden_size": 8}}, "multimodal model .llama."),
        ({**LLAMA, "is_encoder_decoder": True}, "encoder-decoder model .llama."),
    ],
)
def test_one_clear_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        shape_of(config, "x")
    assert "\n" not in caught.value.message


def test_families_refuse_other_kinds_too() -> None:
    with pytest.raises(InputError, match="multimodal"):
        family_of({"model_type": "llama", "audio_config": {}})


def test_null_counts_as_not_given() -> None:
    nulls = {"num_key_value_heads": None, "head_dim": None, "vision_config": None, "mlp_bias": None}
    assert shape_of({**without(LLAMA, "num_key_value_heads"), **nulls}, "x").kv_heads == 6


def test_sizes_and_their_defaults() -> None:
    config = {"_name": "x", "b": 3, "c": None}
    assert size(config, "a", "b") == 3
    assert size(config, "c", "b", default=7) == 3
    assert size(config, "c", default=7) == 7
    assert head_dim({"_name": "x", "head_dim": 5}, 48, 7) == 5
    assert head_dim({"_name": "x"}, 48, 6) == 8


@pytest.mark.parametrize(
    ("name", "expected"),
    [("swish", "silu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu_new", "gelu_new")],
)
def test_activations(name: str, expected: str) -> None:
    assert activation({"_name": "x", "act": name}, "act", default="relu") == expected
    assert activation({"_name": "x"}, "act", default="relu") == "relu"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 32),
        ({"partial": 1.0}, None),
        ({"partial": 0.4}, 32),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, 20),
    ],
)
def test_rotary_dim(config: dict[str, Any], expected: int | None) -> None:
    assert rotary_dim(config, 80, key="partial", default=0.4) == expected


WINDOWED, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("types", "window", "every"),
    [
        (None, 8, 6),
        ([WINDOWED, FULL, WINDOWED, FULL], 8, 2),
        ([WINDOWED, WINDOWED, FULL, WINDOWED], 8, 3),
        ([WINDOWED, WINDOWED], 8, 1),
        ([FULL, FULL], None, None),
    ],
)
def test_windows(types: list[str] | None, window: int | None, every: int | None) -> None:
    config = {"_name": "x", "sliding_window": 8, "layer_types": types}
    found = windows(config, every=6)
    assert found["sliding_window"] == window
    assert found.get("full_attention_every") == every


def test_windows_without_a_rhythm() -> None:
    config = {"_name": "x", "sliding_window": 8, "layer_types": [FULL, WINDOWED, FULL]}
    with pytest.raises(InputError, match="fixed rhythm"):
        windows(config, every=6)
    assert windows({"_name": "x"}, every=2)["sliding_window"] is None
