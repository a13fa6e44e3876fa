"""Phi-3 and 3.5: LLaMA's block with one linear for q, k and v and one for gate and up."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import dropout, model_shape, optional_size, rotary_dim
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    linears=("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"),
    pairs=(),
)


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Phi-3 config.json."""
    fields = llama.sizes({"max_position_embeddings": 4096, **config})
    fields |= {"qkv_bias": False, "output_bias": False, "mlp_bias": False}
    return model_shape(
        config,
        **fields,
        linear_names=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        fused_qkv=True,
        fused_gate_up=True,
        rotary_dim=rotary_dim(config, fields["head_dim"], key="partial_rotary_factor", default=1.0),
        sliding_window=optional_size(config, "sliding_window"),
        # Phi-3 reads embd_pdrop but drops nothing there.
        residual_dropout=dropout(config, "resid_pdrop"),
    )
