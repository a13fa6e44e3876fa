"""Shrunken configs of every architecture that the formulas of the Hugging Face trainer cover."""

from __future__ import annotations

from typing import Any

_LLAMA = {
    "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 96, "num_hidden_layers": 2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_WIDE_HEADS = _LLAMA | {"head_dim": 16}
_OLD = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
_MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_DEEPSEEK = _LLAMA | {
    "num_key_value_heads": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "first_k_dense_replace": 0, "q_lora_rank": 24,
    "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
_BY_NAME: dict[str, dict[str, Any]] = {
    "llama": _WIDE_HEADS,
    "mistral": _WIDE_HEADS,
    "qwen2": _LLAMA,
    "qwen3": _WIDE_HEADS,
    "gemma": _WIDE_HEADS,
    "gemma2": _WIDE_HEADS,
    "gemma3_text": _WIDE_HEADS,
    "phi": _LLAMA | {"num_key_value_heads": 8},
    "phi3": _LLAMA,
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 96, "n_positions": 1024},
    "opt": _OLD | {"ffn_dim": 256, "word_embed_proj_dim": 64, "max_position_embeddings": 1024},
    "bloom": {"hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": 96},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 96, "max_seq_len": 1024},
    "falcon": _OLD,
    "falcon, new decoder": _OLD | {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gpt_neox": _OLD | {"intermediate_size": 256, "rotary_pct": 0.25},
    "stablelm": _LLAMA,
    "mixtral": _WIDE_HEADS | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": _LLAMA | _MOE | {"shared_expert_intermediate_size": 80},
    "qwen3_moe": _WIDE_HEADS | _MOE,
    "deepseek_v2": _DEEPSEEK | {"n_shared_experts": 2, "topk_method": "greedy"},
    "deepseek_v3": _DEEPSEEK | {"n_shared_experts": 1, "n_group": 2, "topk_group": 1},
    "olmo2": _LLAMA,
    "starcoder2": _LLAMA,
    "cohere": _LLAMA,
    "bert": _OLD | {"intermediate_size": 256, "max_position_embeddings": 1024},
}
ARCHITECTURES = tuple(_BY_NAME)
NO_FLASH = {"bloom", "mpt"}
"""transformers has no flash attention for these."""
FLASH_NOT_TRACED = {"falcon", "falcon, new decoder"}
"""Falcon's flash attention is a class of its own, which takes no other kernel."""


def config(name: str, **other: Any) -> dict[str, Any]:
    """A whole config.json of the architecture, with all defaults of transformers."""
    from transformers import AutoConfig

    kind = name.split(",", maxsplit=1)[0]
    found = AutoConfig.for_model(kind, **{**_BY_NAME[name], **other}).to_dict()
    return {**found, "model_type": kind}
