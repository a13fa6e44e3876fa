"""LLaMA 1 to 3 and models of the same architecture (SmolLM2, Yi, TinyLlama, Vicuna)."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, dropout, flag, head_dim, model_shape, size
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


def sizes(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ModelShape that LLaMA's keys give; many families share these keys."""
    hidden = size(config, "hidden_size")
    heads = size(config, "num_attention_heads")
    bias = flag(config, "attention_bias", default=False)
    return {
        "layers": size(config, "num_hidden_layers"),
        "hidden_size": hidden,
        "heads": heads,
        "kv_heads": size(config, "num_key_value_heads", default=heads),
        "head_dim": head_dim(config, hidden, heads),
        "intermediate_size": size(config, "intermediate_size"),
        "vocab_size": size(config, "vocab_size"),
        "max_positions": size(config, "max_position_embeddings", default=2048),
        "activation": activation(config, "hidden_act", default="silu"),
        "tied_embeddings": flag(config, "tie_word_embeddings", default=False),
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": flag(config, "mlp_bias", default=False),
        "attention_dropout": dropout(config, "attention_dropout"),
    }


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a LLaMA config.json."""
    return model_shape(config, **sizes(config))
