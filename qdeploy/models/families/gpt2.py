"""GPT-2: fused qkv, GELU MLP without a gate, LayerNorms and biases, learned positions, Conv1D."""

from __future__ import annotations

from typing import Any

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
    hidden, heads = config["n_embd"], config["n_head"]
    return ModelShape(
        name=config["_name"],
        family="gpt2",
        layers=config["n_layer"],
        hidden_size=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=config.get("n_inner") or 4 * hidden,
        vocab_size=config["vocab_size"],
        max_positions=config.get("n_positions", 1024),
        gated_mlp=False,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        learned_positions=True,
    )
