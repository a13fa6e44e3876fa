"""From a `ModelShape` back to a config that transformers can build the model from."""

from __future__ import annotations

from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.models.family import shape_of
from qdeploy.models.shape import ModelShape
from qdeploy.trace.model import no_class

_NAMES = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "tied_embeddings": "tie_word_embeddings",
    "sliding_window": "sliding_window",
    "experts_per_token": "num_experts_per_tok",
    "expert_intermediate_size": "moe_intermediate_size",
    "shared_expert_intermediate_size": "shared_expert_intermediate_size",
    "moe_every": "decoder_sparse_step",
    "dense_layers": "first_k_dense_replace",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "parallel_residual": "use_parallel_residual",
}
"""Field of a shape -> key of a config, as most families call it."""
_OWN_NAMES: dict[str, dict[str, str]] = {
    "gpt2": {
        "layers": "n_layer", "hidden_size": "n_embd", "heads": "n_head",
        "intermediate_size": "n_inner", "max_positions": "n_positions",
    },
    "opt": {"intermediate_size": "ffn_dim"},
    "bloom": {"layers": "n_layer", "heads": "n_head", "max_positions": "seq_length"},
    "mpt": {
        "layers": "n_layers", "hidden_size": "d_model", "heads": "n_heads",
        "max_positions": "max_seq_len",
    },
    "falcon": {"kv_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
    "mixtral": {"experts": "num_local_experts", "expert_intermediate_size": "intermediate_size"},
    "gpt_oss": {"experts": "num_local_experts", "expert_intermediate_size": "intermediate_size"},
    "qwen2_moe": {"experts": "num_experts"},
    "qwen3_moe": {"experts": "num_experts"},
    "deepseek_v2": {"experts": "n_routed_experts"},
    "deepseek_v3": {"experts": "n_routed_experts"},
}  # fmt: skip
_FIXED = {"head_dim", "kv_heads"}
"""Fields that families with one key-value head a query head have no key for."""
_PLAIN = {"gpt2", "opt", "bloom", "mpt", "gpt_neox", "bert", "phi"}


def config_of(shape: ModelShape) -> dict[str, Any]:
    """A config from which the family reads `shape` again.

    Raises InputError where there is none: the shape has something that its family's usual config
    does not say, or the family has no class in transformers.
    """
    from transformers import CONFIG_MAPPING

    if shape.family not in CONFIG_MAPPING:
        raise no_class(shape.family)
    names = _NAMES | _OWN_NAMES.get(shape.family, {})
    left_out = _FIXED if shape.family in _PLAIN else set()
    config: dict[str, Any] = {
        key: getattr(shape, field)
        for field, key in names.items()
        if field not in left_out and getattr(shape, field) not in (None, 0)
    }
    config |= {"model_type": shape.family, **_extras(shape)}
    read = shape_of(config, shape.name)
    if read != shape:
        wrong = [name for name in ModelShape.model_fields if _differs(name, read, shape)]
        raise InputError(
            f"the shape of {shape.name} says of {', '.join(wrong)} what no config of family "
            f"{shape.family} can be made of",
            hint="give the model's folder with its config.json",
        )
    return config


def _extras(shape: ModelShape) -> dict[str, Any]:
    """Keys that are no size."""
    found: dict[str, Any] = {
        "attention_bias": shape.qkv_bias,
        "mlp_bias": shape.mlp_bias,
        "use_qkv_bias": shape.qkv_bias,
        "use_sliding_window": shape.sliding_window is not None,
        "partial_rotary_factor": (shape.rotary_dim or shape.head_dim) / shape.head_dim,
        "rotary_pct": (shape.rotary_dim or shape.head_dim) / shape.head_dim,
    }
    if shape.sliding_window is None:
        found["sliding_window"] = None
    if shape.family == "opt":
        found["word_embed_proj_dim"] = shape.hidden_size
        found["activation_function"] = shape.activation
        found["enable_bias"] = shape.qkv_bias
        found["layer_norm_elementwise_affine"] = shape.norm_weight
        found |= {"dropout": shape.residual_dropout, "attention_dropout": shape.attention_dropout}
    if shape.family == "phi":
        found |= {"resid_pdrop": shape.residual_dropout, "embd_pdrop": shape.embedding_dropout}
    if shape.family == "starcoder2":
        for name in ("embedding_dropout", "attention_dropout", "residual_dropout"):
            found[name] = getattr(shape, name)
    if shape.family == "mpt":
        found["no_bias"] = not shape.norm_bias
        found["expansion_ratio"] = shape.intermediate_size // shape.hidden_size
        found["attn_config"] = {"alibi": shape.alibi}
    if shape.family == "falcon":
        found["new_decoder_architecture"] = shape.kv_heads > 1
        found["alibi"] = shape.alibi
    if shape.kv_lora_rank:
        found["qk_nope_head_dim"] = shape.head_dim - shape.qk_rope_head_dim
        found["q_lora_rank"] = shape.q_lora_rank
        width = shape.expert_intermediate_size
        found["n_shared_experts"] = shape.shared_expert_intermediate_size // width
    return found


def _differs(name: str, read: ModelShape, shape: ModelShape) -> bool:
    return bool(getattr(read, name) != getattr(shape, name))
