"""SmolLM 3: LLaMA's blocks, every fourth without rotation."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape
from qdeploy.models.families import llama, qwen2
from qdeploy.models.shape import ModelShape

FAMILY = llama.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a SmolLM 3 config.json; the blocks without rotation count as the others."""
    defaults = {
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    }
    fields = llama.sizes({**defaults, **config})
    return model_shape(config, **fields, sliding_window=qwen2.window(config))
