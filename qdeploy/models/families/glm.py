"""GLM-4-9B in transformers' own form: gate and up in one linear, half of each head rotated."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import flag, model_shape, rotary_dim
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=(*llama.ATTENTION, "mlp.gate_up_proj", "mlp.down_proj"),
    pairs=(),
)


def sizes(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ModelShape that GLM and GLM-4-0414 share."""
    defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 2, "head_dim": 128}
    fields = llama.sizes({**defaults, **config})
    rotated = rotary_dim(config, fields["head_dim"], key="partial_rotary_factor", default=0.5)
    return {
        **fields,
        "qkv_bias": flag(config, "attention_bias", default=True),
        "output_bias": False,
        "mlp_bias": False,
        "fused_gate_up": True,
        "linear_names": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
        "rotary_dim": rotated,
    }


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a GLM config.json."""
    return model_shape(config, **sizes(config))
