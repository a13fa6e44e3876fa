"""Command R: attention and MLP side by side behind one LayerNorm without a bias."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import model_shape, refuse
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(blocks="model.layers", linears=llama.FAMILY.linears, pairs=())


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Cohere config.json. Raises InputError for Command R+'s norm for each head."""
    refuse(config, "use_qk_norm", because="a norm of its own for each head")
    defaults = {"max_position_embeddings": 8192, "tie_word_embeddings": True}
    return model_shape(
        config,
        **llama.sizes({**defaults, **config}) | {"mlp_bias": False},
        parallel_residual=True,
        norms_per_block=1,
        norm="layer",
    )
