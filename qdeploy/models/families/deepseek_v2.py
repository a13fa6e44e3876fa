"""DeepSeek V2: multi-head latent attention, the first layers dense, routed and shared experts."""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.models.config import model_shape, optional_size, size
from qdeploy.models.families import llama
from qdeploy.models.family import Family
from qdeploy.models.shape import ModelShape

FAMILY = Family(
    blocks="model.layers",
    # The queries' linears depend on q_lora_rank.
    linears=("self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj"),
    pairs=(),
)


def _first_layers(config: dict[str, Any]) -> int:
    """The dense layers before those with experts."""
    found = config.get("first_k_dense_replace") or 0
    if not isinstance(found, int) or found < 0:
        raise InputError(
            f"config of {config['_name']}: first_k_dense_replace must be a whole number of at "
            f"least 0, found {found!r}"
        )
    return found


def shape(config: dict[str, Any]) -> ModelShape:
    """Sizes from a DeepSeek V2 config.json; modules for multi-token prediction do not count.

    Raises InputError where experts lie in other layers than all but the first.
    """
    if size(config, "moe_layer_freq", default=1) != 1:
        raise InputError(f"config of {config['_name']}: moe_layer_freq other than 1 is not handled")
    rotated = size(config, "qk_rope_head_dim")
    width = size(config, "moe_intermediate_size")
    # head_dim of config.json is the rotated part only.
    fields = llama.sizes({**config, "head_dim": size(config, "qk_nope_head_dim") + rotated})
    return model_shape(
        config,
        **fields | {"kv_heads": fields["heads"]},
        q_lora_rank=optional_size(config, "q_lora_rank"),
        kv_lora_rank=size(config, "kv_lora_rank"),
        qk_rope_head_dim=rotated,
        rotary_dim=rotated,
        v_head_dim=size(config, "v_head_dim"),
        experts=size(config, "n_routed_experts", "num_local_experts"),
        experts_per_token=size(config, "num_experts_per_tok"),
        expert_intermediate_size=width,
        shared_expert_intermediate_size=width * (optional_size(config, "n_shared_experts") or 0),
        dense_layers=_first_layers(config),
    )
