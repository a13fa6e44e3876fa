"""Qwen 1.5, 2 and 2.5: LLaMA's blocks with a bias on queries, keys and values."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, optional_size
from qdeploy.models.families import llama
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def window(config: dict[str, Any]) -> int | None:
    """The sliding window of a Qwen model, where it is switched on for all layers.

    Layers below `max_window_layers` have none; a model of both kinds counts as without a window,
    which is never too little.
    """
    everywhere = config.get("use_sliding_window") and config.get("max_window_layers") == 0
    return optional_size(config, "sliding_window") if everywhere else None


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen2 config.json."""
    fields = llama.sizes({"max_position_embeddings": 32768, **config})
    fields |= {"qkv_bias": True, "output_bias": False, "mlp_bias": False}
    return model_shape(config, **fields, sliding_window=window(config))
