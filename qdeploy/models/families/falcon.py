"""Falcon: fused qkv, GELU MLP without a gate; 7B, 40B and the RW models differ in their block."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, dropout, flag, head_dim, model_shape, size
from qdeploy.models.families import bloom
from qdeploy.models.shape import ModelShape

FAMILY = bloom.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Falcon config.json.

    7B: one key-value head, one norm before attention and MLP side by side. 40B and 180B
    (`new_decoder_architecture`): a group of key-value heads, a norm for each of the two.
    RW: ALiBi, biases, MLP after attention.
    """
    hidden = size(config, "hidden_size", "n_embed")
    heads = size(config, "num_attention_heads", "n_head")
    grouped = flag(config, "new_decoder_architecture", default=False)
    parallel = grouped or flag(config, "parallel_attn", default=True)
    kv_heads = size(config, "num_kv_heads", "n_head_kv", default=heads)
    if not grouped:
        kv_heads = 1 if flag(config, "multi_query", default=True) else heads
    norms = size(config, "num_ln_in_parallel_attn", default=2 if grouped else 1)
    bias = flag(config, "bias", default=False)
    return model_shape(
        config,
        layers=size(config, "num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim(config, hidden, heads),
        intermediate_size=size(config, "ffn_hidden_size", default=4 * hidden),
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_position_embeddings", default=2048),
        linear_names=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        gated_mlp=False,
        fused_qkv=True,
        activation=activation(config, "activation", default="gelu"),
        parallel_residual=parallel,
        tied_embeddings=flag(config, "tie_word_embeddings", default=True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norm="layer",
        norm_bias=True,
        norms_per_block=norms if parallel else 2,
        alibi=flag(config, "alibi", default=False),
        attention_dropout=dropout(config, "attention_dropout"),
        residual_dropout=dropout(config, "hidden_dropout"),
    )
