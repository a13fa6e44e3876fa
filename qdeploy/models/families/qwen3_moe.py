"""Qwen 3 with experts: Qwen 3's attention, no shared expert."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape
from qdeploy.models.families import llama, qwen2, qwen2_moe
from qdeploy.models.shape import ModelShape

FAMILY = qwen2_moe.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen3-MoE config.json."""
    fields = llama.sizes({"max_position_embeddings": 32768, **config})
    return model_shape(
        config,
        **fields | {"mlp_bias": False},
        **qwen2_moe.experts(config),
        qk_norm=True,
        sliding_window=qwen2.window(config),
    )
