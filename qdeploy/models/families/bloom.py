"""BLOOM: ALiBi, fused qkv, LayerNorms with biases, one more behind the embedding."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import dropout, flag, head_dim, model_shape, size
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="transformer.h",
    linears=(
        "self_attention.query_key_value",
        "self_attention.dense",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    ),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a BLOOM config.json; positions are those of training (`seq_length`)."""
    hidden = size(config, "hidden_size", "n_embed")
    heads = size(config, "n_head", "num_attention_heads")
    return model_shape(
        config,
        layers=size(config, "n_layer", "num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, hidden, heads),
        intermediate_size=4 * hidden,
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "seq_length", default=2048),
        linear_names=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        gated_mlp=False,
        fused_qkv=True,
        # The approximation, in an autograd function of its own that keeps its input only.
        activation="gelu_tanh",
        tied_embeddings=flag(config, "tie_word_embeddings", default=True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm="layer",
        norm_bias=True,
        embedding_norm=True,
        alibi=True,
        attention_dropout=dropout(config, "attention_dropout"),
        residual_dropout=dropout(config, "hidden_dropout"),
    )
