"""InternLM 2 and 2.5 (remote code): LLaMA's block with one linear for q, k and v."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import flag, model_shape
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=(
        "attention.wqkv",
        "attention.wo",
        "feed_forward.w1",
        "feed_forward.w3",
        "feed_forward.w2",
    ),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from an InternLM2 config.json."""
    bias = flag(config, "bias", default=True)
    fields = llama.sizes(config) | {"qkv_bias": bias, "output_bias": bias, "mlp_bias": False}
    return model_shape(
        config, **fields, linear_names=("wqkv", "wo", "w1", "w3", "w2"), fused_qkv=True
    )
