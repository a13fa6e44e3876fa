"""MPT: fused qkv, GELU MLP without a gate, LayerNorms, ALiBi or learned positions."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import dropout, flag, head_dim, model_shape, refuse, size
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="transformer.blocks",
    linears=("attn.Wqkv", "attn.out_proj", "ffn.up_proj", "ffn.down_proj"),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from an MPT config.json; `no_bias` drops the biases of linears and norms alike."""
    attention = {**(config.get("attn_config") or {}), "_name": config["_name"]}
    refuse(attention, "qk_ln", because="norms over all queries and keys with MPT's layouts")
    hidden, heads = size(config, "d_model"), size(config, "n_heads")
    several = attention.get("attn_type") != "multiquery_attention"
    bias = not flag(config, "no_bias", default=True)
    alibi = flag(attention, "alibi", default=True)
    return model_shape(
        config,
        layers=size(config, "n_layers"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=size(attention, "kv_n_heads", default=heads if several else 1),
        head_dim=head_dim(config, hidden, heads),
        intermediate_size=size(config, "expansion_ratio", default=4) * hidden,
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "max_seq_len", default=2048),
        linear_names=("Wqkv", "out_proj", "up_proj", "down_proj"),
        gated_mlp=False,
        fused_qkv=True,
        activation="gelu",
        tied_embeddings=flag(config, "tie_word_embeddings", default=True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norm="layer",
        norm_bias=bias,
        alibi=alibi,
        learned_positions=flag(config, "learned_pos_emb", default=True) and not alibi,
        embedding_dropout=dropout(config, "emb_pdrop"),
        attention_dropout=dropout(attention, "attn_pdrop"),
        residual_dropout=dropout(config, "resid_pdrop"),
    )
