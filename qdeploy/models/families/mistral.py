"""Mistral: LLaMA's blocks, grouped queries, a sliding window in the first releases."""

from __future__ import annotations

from typing import Any

from qdeploy.models.families import llama
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Mistral config.json."""
    kv_heads = config.get("num_key_value_heads", 8)
    base = llama.shape(
        {"max_position_embeddings": 131072, **config, "num_key_value_heads": kv_heads}
    )
    return base.model_copy(update={"sliding_window": config.get("sliding_window")})
