"""Qwen 2 and 2.5: LLaMA's blocks with a bias on queries, keys and values."""

from __future__ import annotations

from typing import Any

from qdeploy.models.families import llama
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen2 config.json. Its sliding window is used only when switched on."""
    base = llama.shape({"max_position_embeddings": 32768, **config})
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return base.model_copy(update={"qkv_bias": True, "sliding_window": window})
