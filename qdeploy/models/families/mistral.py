"""Mistral: LLaMA's blocks, grouped queries, a sliding window in the first releases."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, optional_size
from qdeploy.models.families import llama
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Mistral config.json."""
    defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 8}
    return model_shape(
        config,
        **llama.sizes({**defaults, **config}) | {"qkv_bias": False, "output_bias": False},
        sliding_window=optional_size(config, "sliding_window"),
    )
