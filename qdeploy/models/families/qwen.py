"""Qwen 1 (remote code): fused qkv with a bias, RMSNorm, a gated MLP half as wide as it says."""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.models.config import dropout, flag, head_dim, model_shape, size
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="transformer.h",
    linears=("attn.c_attn", "attn.c_proj", "mlp.w2", "mlp.w1", "mlp.c_proj"),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen 1 config.json; `intermediate_size` counts gate and up together."""
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    gate_and_up = size(config, "intermediate_size")
    if gate_and_up % 2:
        raise InputError(
            f"config of {config['_name']}: intermediate_size {gate_and_up} holds gate and up "
            "together and must be even"
        )
    bias = not flag(config, "no_bias", default=True)
    return model_shape(
        config,
        layers=size(config, "num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, hidden, heads, key="kv_channels"),
        intermediate_size=gate_and_up // 2,
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings", "seq_length"),
        linear_names=("c_attn", "c_proj", "w2", "w1", "c_proj"),
        fused_qkv=True,
        tied_embeddings=flag(config, "tie_word_embeddings", default=False),
        qkv_bias=True,
        output_bias=bias,
        mlp_bias=bias,
        embedding_dropout=dropout(config, "emb_dropout_prob"),
        attention_dropout=dropout(config, "attn_dropout_prob"),
    )
