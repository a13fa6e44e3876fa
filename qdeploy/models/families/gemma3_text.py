"""Gemma 3, text: four norms a block that scale by 1 + weight, five windowed layers to one full."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, size, windows
from qdeploy.models.families import gemma, llama
from qdeploy.models.family import Family, SmoothingPair
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=llama.FAMILY.linears,
    pairs=(
        SmoothingPair("input_layernorm", llama.ATTENTION[:3]),
        SmoothingPair("self_attn.v_proj", ("self_attn.o_proj",)),
        SmoothingPair("pre_feedforward_layernorm", llama.MLP[:2]),
        SmoothingPair("mlp.up_proj", ("mlp.down_proj",)),
    ),
    norm_offset=1.0,
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Gemma 3 text config.json."""
    every = size(config, "sliding_window_pattern", default=6)
    return model_shape(
        config,
        **gemma.sizes(config, max_positions=131072, vocabulary=262208),
        qk_norm=True,
        norms_per_block=4,
        attention_softcap=config.get("attn_logit_softcapping") is not None,
        logit_softcap=config.get("final_logit_softcapping") is not None,
        **windows(config, every=every, default=4096),
    )
