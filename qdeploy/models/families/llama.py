"""LLaMA 1 to 3 and models of the same architecture (SmolLM2, Yi, TinyLlama, Vicuna)."""

from __future__ import annotations

from typing import Any

from qdeploy.models.family import Family, SmoothingPair
from qdeploy.models.shape import ModelShape

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

FAMILY = Family(
    blocks="model.layers",
    linears=ATTENTION + MLP,
    pairs=(
        SmoothingPair("input_layernorm", ATTENTION[:3]),
        SmoothingPair("self_attn.v_proj", ("self_attn.o_proj",)),
        SmoothingPair("post_attention_layernorm", MLP[:2]),
        SmoothingPair("mlp.up_proj", ("mlp.down_proj",)),
    ),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a LLaMA config.json."""
    heads = config["num_attention_heads"]
    bias = bool(config.get("attention_bias", False))
    return ModelShape(
        name=config["_name"],
        family=config["model_type"],
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_positions=config.get("max_position_embeddings", 2048),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
