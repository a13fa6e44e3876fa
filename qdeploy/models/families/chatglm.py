"""ChatGLM 2 and 3, and GLM-4-9B in its remote code: multi-query, fused qkv, fused gate and up."""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.models.config import dropout, flag, head_dim, model_shape, size
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="transformer.encoder.layers",
    linears=(
        "self_attention.query_key_value",
        "self_attention.dense",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    ),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a ChatGLM config.json. Raises InputError for the first ChatGLM."""
    if "position_encoding_2d" in config or "inner_hidden_size" in config:
        raise InputError(
            f"config of {config['_name']}: the first ChatGLM (two-dimensional positions) is not "
            "handled, ChatGLM2 and later are"
        )
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    head = head_dim(config, hidden, heads, key="kv_channels")
    grouped = flag(config, "multi_query_attention", default=False)
    bias = flag(config, "add_bias_linear", default=False)
    layer_norm = not flag(config, "rmsnorm", default=True)
    return model_shape(
        config,
        layers=size(config, "num_layers", "num_hidden_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=size(config, "multi_query_group_num") if grouped else heads,
        head_dim=head,
        intermediate_size=size(config, "ffn_hidden_size"),
        vocab_size=size(config, "padded_vocab_size", "vocab_size"),
        max_positions=size(config, "seq_length"),
        linear_names=("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
        fused_qkv=True,
        fused_gate_up=True,
        tied_embeddings=flag(config, "tie_word_embeddings", default=False),
        qkv_bias=bias or flag(config, "add_qkv_bias", default=False),
        output_bias=bias,
        mlp_bias=bias,
        norm="layer" if layer_norm else "rms",
        norm_bias=layer_norm,
        final_norm=flag(config, "post_layer_norm", default=True),
        rotary_dim=head // 2,
        attention_dropout=dropout(config, "attention_dropout"),
        residual_dropout=dropout(config, "hidden_dropout"),
    )
