"""GPT-NeoX (Pythia, StableLM-Alpha): attention and MLP side by side, each behind its LayerNorm."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import (
    activation,
    dropout,
    flag,
    head_dim,
    model_shape,
    rotary_dim,
    size,
)
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="gpt_neox.layers",
    linears=(
        "attention.query_key_value",
        "attention.dense",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    ),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a GPT-NeoX config.json."""
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    head = head_dim(config, hidden, heads)
    bias = flag(config, "attention_bias", default=True)
    return model_shape(
        config,
        layers=size(config, "num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        intermediate_size=size(config, "intermediate_size"),
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings", default=2048),
        linear_names=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        gated_mlp=False,
        fused_qkv=True,
        activation=activation(config, "hidden_act", default="gelu"),
        parallel_residual=flag(config, "use_parallel_residual", default=True),
        tied_embeddings=flag(config, "tie_word_embeddings", default=False),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        norm="layer",
        norm_bias=True,
        rotary_dim=rotary_dim(config, head, key="rotary_pct", default=0.25),
        embedding_dropout=dropout(config, "hidden_dropout"),
        attention_dropout=dropout(config, "attention_dropout"),
        residual_dropout=dropout(config, "hidden_dropout"),
    )
