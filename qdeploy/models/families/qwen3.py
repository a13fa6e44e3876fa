"""Qwen 3 (dense): LLaMA's blocks with a norm on queries and keys, a head size of its own."""

from __future__ import annotations

from typing import Any

from qdeploy.models.families import llama
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen3 config.json."""
    base = llama.shape({"max_position_embeddings": 32768, "head_dim": 128, **config})
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return base.model_copy(update={"qk_norm": True, "sliding_window": window})
