"""Mixtral: Mistral's attention, experts in every layer."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, optional_size, size
from qdeploy.models.families import llama, qwen2_moe
from qdeploy.models.shape import ModelShape

FAMILY = qwen2_moe.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Mixtral config.json."""
    defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 8}
    fields = llama.sizes({**defaults, **config})
    return model_shape(
        config,
        **fields | {"qkv_bias": False, "output_bias": False, "mlp_bias": False},
        experts=size(config, "num_local_experts", "num_experts"),
        experts_per_token=size(config, "num_experts_per_tok", default=2),
        expert_intermediate_size=fields["intermediate_size"],
        sliding_window=optional_size(config, "sliding_window"),
    )
