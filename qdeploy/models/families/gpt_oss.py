"""gpt-oss: experts with biases in every layer, attention sinks, every second layer windowed."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, size, windows
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(blocks="model.layers", linears=llama.ATTENTION, pairs=())


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a gpt-oss config.json; gate and up of its experts are one tensor."""
    defaults = {"max_position_embeddings": 131072, "head_dim": 64, "attention_bias": True}
    fields = llama.sizes({**defaults, **config})
    return model_shape(
        config,
        **fields,
        experts=size(config, "num_local_experts", "num_experts"),
        experts_per_token=size(config, "num_experts_per_tok", "experts_per_token"),
        expert_intermediate_size=fields["intermediate_size"],
        expert_bias=True,
        attention_sinks=True,
        **windows(config, every=2, default=128),
    )
