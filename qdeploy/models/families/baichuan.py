"""Baichuan 1 and 2 (remote code): LLaMA's block with one linear for q, k and v; 13B has ALiBi."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, size
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=("self_attn.W_pack", "self_attn.o_proj", *llama.MLP),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Baichuan config.json.

    The 13B models have ALiBi and no `max_position_embeddings`, only `model_max_length`.
    """
    alibi = config.get("max_position_embeddings") is None
    positions = size(config, "max_position_embeddings", "model_max_length", default=4096)
    fields = llama.sizes({**config, "max_position_embeddings": positions})
    return model_shape(
        config,
        **fields,
        linear_names=("W_pack", "o_proj", "gate_proj", "up_proj", "down_proj"),
        fused_qkv=True,
        alibi=alibi,
    )
