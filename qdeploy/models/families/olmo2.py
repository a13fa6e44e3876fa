"""OLMo 2: LLaMA's linears, norms behind attention and MLP, norms over all queries and all keys."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(blocks="model.layers", linears=llama.FAMILY.linears, pairs=())


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from an OLMo 2 config.json."""
    return model_shape(config, **llama.sizes(config) | {"mlp_bias": False}, qk_norm_whole=True)
