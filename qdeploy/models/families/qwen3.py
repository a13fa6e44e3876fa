"""Qwen 3 (dense): LLaMA's blocks with a norm on queries and keys, a head size of its own."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape
from qdeploy.models.families import llama, qwen2
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen3 config.json."""
    fields = llama.sizes({"max_position_embeddings": 32768, "head_dim": 128, **config})
    return model_shape(config, **fields, qk_norm=True, sliding_window=qwen2.window(config))
