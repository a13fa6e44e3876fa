"""Qwen 1.5 and 2 with experts: one gated shared expert beside the routed ones."""

from __future__ import annotations

from typing import Any

from qdeploy.models.config import flag, model_shape, refuse, size
from qdeploy.models.families import llama, qwen2
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(blocks="model.layers", linears=llama.ATTENTION, pairs=())


def experts(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ModelShape that say which layers have which experts.

    Raises InputError where single layers are dense (`mlp_only_layers`).
    """
    refuse(config, "mlp_only_layers", because="single dense layers between those with experts")
    return {
        "experts": size(config, "num_experts", "num_local_experts"),
        "experts_per_token": size(config, "num_experts_per_tok"),
        "expert_intermediate_size": size(config, "moe_intermediate_size"),
        "moe_every": size(config, "decoder_sparse_step", default=1),
    }


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a Qwen2-MoE config.json."""
    fields = llama.sizes({"max_position_embeddings": 32768, **config})
    fields |= {"qkv_bias": flag(config, "qkv_bias", default=True), "output_bias": False}
    return model_shape(
        config,
        **fields | {"mlp_bias": False},
        **experts(config),
        shared_expert_intermediate_size=size(config, "shared_expert_intermediate_size"),
        shared_expert_gate=True,
        sliding_window=qwen2.window(config),
    )
