"""Gemma 3, text: four norms a block that scale by 1 + weight, five windowed layers to one full."""

from __future__ import annotations

from typing import Any

from qdeploy.models.families import llama
from qdeploy.models.family import Family, SmoothingPair
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=llama.FAMILY.linears,
    pairs=(
        SmoothingPair("input_layernorm", llama.ATTENTION[:3]),
        SmoothingPair("self_attn.v_proj", ("self_attn.o_proj",)),
        SmoothingPair("pre_feedforward_layernorm", llama.MLP[:2]),
        SmoothingPair("mlp.up_proj", ("mlp.down_proj",)),
    ),
    norm_offset=1.0,
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Gemma 3 text config.json; its embeddings are tied unless it says otherwise."""
    defaults = {
        "max_position_embeddings": 131072,
        "head_dim": 256,
        "vocab_size": 262208,
        "tie_word_embeddings": True,
    }
    base = llama.shape({**defaults, **config})
    return base.model_copy(
        update={
            "qk_norm": True,
            "norms_per_block": 4,
            "sliding_window": config.get("sliding_window", 4096),
            "full_attention_every": config.get("sliding_window_pattern", 6),
        }
    )
