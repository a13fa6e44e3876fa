"""Gemma 1: LLaMA's blocks with norms that scale by 1 + weight, heads wider than the hidden size."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, model_shape
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=llama.FAMILY.linears,
    pairs=llama.FAMILY.pairs,
    norm_offset=1.0,
)


def sizes(config: dict[str, Any], *, max_positions: int, vocabulary: int) -> dict[str, Any]:
    """The fields of a ModelShape that all Gemma models share; embeddings are tied by default."""
    defaults = {
        "max_position_embeddings": max_positions,
        "head_dim": 256,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }
    # hidden_act of the first releases says gelu; the models run the approximation.
    gelu = activation(config, "hidden_activation", default="gelu_pytorch_tanh")
    return {**llama.sizes({**defaults, **config}), "activation": gelu, "mlp_bias": False}


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Gemma config.json."""
    return model_shape(config, **sizes(config, max_positions=8192, vocabulary=256000))
