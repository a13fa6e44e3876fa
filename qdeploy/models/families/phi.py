"""Phi-1, 1.5 and 2: attention and MLP side by side behind one LayerNorm, biases everywhere."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import activation, dropout, model_shape, refuse, rotary_dim
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=(*llama.ATTENTION[:3], "self_attn.dense", "mlp.fc1", "mlp.fc2"),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Phi config.json."""
    refuse(config, "qk_layernorm", because="no released Phi model uses it")
    fields = llama.sizes(config)
    fields |= {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "gated_mlp": False}
    return model_shape(
        config,
        **fields | {"activation": activation(config, "hidden_act", default="gelu_new")},
        linear_names=("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
        parallel_residual=True,
        norms_per_block=1,
        norm="layer",
        norm_bias=True,
        head_bias=True,
        rotary_dim=rotary_dim(config, fields["head_dim"], key="partial_rotary_factor", default=0.5),
        embedding_dropout=dropout(config, "embd_pdrop"),
        residual_dropout=dropout(config, "resid_pdrop"),
    )
