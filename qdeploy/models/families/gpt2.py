"""GPT-2: fused qkv, GELU MLP without a gate, LayerNorms and biases, learned positions, Conv1D."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, dropout, flag, head_dim, model_shape, refuse, size
from qdeploy.models.family import Family, SmoothingPair
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="transformer.h",
    linears=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    pairs=(
        SmoothingPair("ln_1", ("attn.c_attn",)),
        SmoothingPair("ln_2", ("mlp.c_fc",)),
    ),
    transposed=True,
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a GPT-2 config.json."""
    refuse(config, "add_cross_attention", because="it is the decoder of an encoder-decoder model")
    hidden, heads = size(config, "n_embd"), size(config, "n_head")
    return model_shape(
        config,
        layers=size(config, "n_layer"),
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(config, hidden, heads),
        intermediate_size=size(config, "n_inner", default=4 * hidden),
        vocab_size=size(config, "vocab_size"),
        max_positions=size(config, "n_positions", default=1024),
        linear_names=("c_attn", "c_proj", "c_fc", "c_proj"),
        gated_mlp=False,
        fused_qkv=True,
        activation=activation(config, "activation_function", default="gelu_new"),
        tied_embeddings=flag(config, "tie_word_embeddings", default=True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm="layer",
        norm_bias=True,
        learned_positions=True,
        embedding_dropout=dropout(config, "embd_pdrop", 0.1),
        attention_dropout=dropout(config, "attn_pdrop", 0.1),
        residual_dropout=dropout(config, "resid_pdrop", 0.1),
    )
