"""Gemma 2: four norms a block, every second layer windowed, scores and logits capped by tanh."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, windows
from qdeploy.models.families import gemma, gemma3_text
from qdeploy.models.shape import ModelShape

FAMILY = gemma3_text.FAMILY


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Gemma 2 config.json."""
    return model_shape(
        config,
        **gemma.sizes(config, max_positions=8192, vocabulary=256000),
        norms_per_block=4,
        attention_softcap=config.get("attn_logit_softcapping", 50.0) is not None,
        logit_softcap=config.get("final_logit_softcapping", 30.0) is not None,
        **windows(config, every=2, default=4096),
    )
