"""StableLM 3B-4E1T and 2: LLaMA's linears behind LayerNorms, a quarter of each head rotated."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import dropout, flag, model_shape, refuse, rotary_dim
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(blocks="model.layers", linears=llama.FAMILY.linears, pairs=())


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a StableLM config.json. Raises InputError for the 12B's norm for each head."""
    refuse(config, "qk_layernorm", because="a norm of its own for each head")
    fields = llama.sizes({"max_position_embeddings": 4096, **config})
    fields |= {"output_bias": False, "mlp_bias": False}
    parallel = flag(config, "use_parallel_residual", default=False)
    return model_shape(
        config,
        **fields | {"qkv_bias": flag(config, "use_qkv_bias", default=False)},
        parallel_residual=parallel,
        norms_per_block=1 if parallel else 2,
        norm="layer",
        norm_bias=True,
        rotary_dim=rotary_dim(
            config, fields["head_dim"], key="partial_rotary_factor", default=0.25
        ),
        # The one dropout lies behind the MLP.
        residual_dropout=dropout(config, "hidden_dropout"),
    )
