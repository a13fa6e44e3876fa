"""GLM-4-0414: GLM's linears with two more norms, behind attention and behind the MLP."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape
from qdeploy.models.families import glm
from qdeploy.models.shape import ModelShape

FAMILY = glm.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a GLM-4-0414 config.json."""
    return model_shape(config, **glm.sizes(config), norms_per_block=4)
