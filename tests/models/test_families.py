"""Every family's counts and linears against transformers' own classes, shrunken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from qdeploy.core.plugins import plugin_names
from qdeploy.models.family import family_of, shape_of
from qdeploy.models.linear import Linear

LLAMA: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
SQUARE: dict[str, Any] = {**LLAMA, "head_dim": None, "hidden_size": 96}
MANY: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6}
MLA: dict[str, Any] = {
    **MANY, "intermediate_size": 112, "num_key_value_heads": 6, "kv_lora_rank": 20,
    "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14, "n_routed_experts": 5,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip
GPT2: dict[str, Any] = {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 64}

# Families with the keys of their shrunken configs; the odd cases of each are rows of their own.
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, LLAMA) for name in ("llama", "mistral", "qwen2", "qwen3", "smollm3")),
    ("llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6}),
    ("llama", {**LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 1}),
    *((name, LLAMA) for name in ("gemma", "gemma2", "gemma3_text", "glm", "glm4")),
    ("glm", {**LLAMA, "attention_bias": False}),
    *((name, SQUARE) for name in ("phi", "phi3", "stablelm", "starcoder2", "cohere", "olmo2")),
    ("stablelm", {**SQUARE, "use_parallel_residual": True, "use_qkv_bias": True}),
    ("starcoder2", {**SQUARE, "use_bias": False}),
    ("cohere", {**SQUARE, "attention_bias": True}),
    ("mixtral", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2_moe", {**SQUARE, "num_experts": 4, "num_experts_per_tok": 3, "qkv_bias": False,
                   "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}),
    ("qwen2_moe", {**SQUARE, "num_experts": 4, "num_experts_per_tok": 3, "decoder_sparse_step": 2,
                   "num_hidden_layers": 4,
                   "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}),
    ("qwen3_moe", {**LLAMA, "num_experts": 5, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 24}),
    ("gpt_oss", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("deepseek_v2", {**MLA, "q_lora_rank": 28, "n_shared_experts": 2}),
    ("deepseek_v2", {**MLA, "q_lora_rank": None, "n_shared_experts": 1,
                     "first_k_dense_replace": 0}),
    ("deepseek_v3", {**MLA, "q_lora_rank": 28, "n_shared_experts": 1, "n_group": 1,
                     "topk_group": 1, "attention_bias": True}),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 100}),
    ("opt", {**MANY, "ffn_dim": 112, "word_embed_proj_dim": 48, "max_position_embeddings": 63}),
    ("opt", {**MANY, "ffn_dim": 112, "word_embed_proj_dim": 48, "enable_bias": False,
             "layer_norm_elementwise_affine": False, "_remove_final_layer_norm": True}),
    ("bloom", {"hidden_size": 48, "n_layer": 3, "n_head": 6}),
    ("mpt", {"d_model": 48, "n_heads": 6, "n_layers": 3}),
    ("falcon", MANY),
    ("falcon", {**MANY, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {**MANY, "multi_query": False, "parallel_attn": False, "bias": True,
                "alibi": True, "ffn_hidden_size": 100}),
    ("gpt_neox", {**MANY, "intermediate_size": 112}),
    ("gpt_neox", {**MANY, "intermediate_size": 112, "use_parallel_residual": False,
                  "attention_bias": False}),
    ("bert", {**MANY, "intermediate_size": 112, "max_position_embeddings": 63, "num_labels": 3}),
]  # fmt: skip
every_case = pytest.mark.parametrize(
    ("family", "sizes"), CASES, ids=[f"{name}-{row}" for row, (name, _) in enumerate(CASES)]
)
REMOTE_CODE = {"qwen", "baichuan", "chatglm", "internlm2"}


def build(family: str, sizes: dict[str, Any], *, tied: bool) -> tuple[Any, Any]:
    """The shrunken model on the meta device, and its shape."""
    keys = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0} | sizes
    keys = {key: value for key, value in keys.items() if key == "q_lora_rank" or value is not None}
    config = transformers.AutoConfig.for_model(
        family, vocab_size=101, tie_word_embeddings=tied, **keys
    )
    auto = transformers.AutoModelForCausalLM
    if family == "bert":
        auto = transformers.AutoModelForSequenceClassification
    with torch.device("meta"):
        model = auto.from_config(config)
    model.tie_weights()
    return model, shape_of(config.to_dict(), family)


def count(module: Any) -> int:
    """Parameters of a module, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def linears(block: Any) -> list[Linear]:
    """The Linear and Conv1D modules of a block as sizes, sorted."""
    found = []
    for path, module in block.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D", "FalconLinear"):
            sizes = tuple(module.weight.shape)
            out, into = sizes[::-1] if type(module).__name__ == "Conv1D" else sizes
            found.append(Linear(path.rsplit(".", 1)[-1], out, into, module.bias is not None))
    return sorted(found)


@pytest.mark.parametrize("tied", [True, False])
@every_case
def test_counts(family: str, sizes: dict[str, Any], tied: bool) -> None:
    model, shape = build(family, sizes, tied=tied and family != "bert")
    assert shape.parameters == count(model)
    blocks = model.get_submodule(family_of({"model_type": family}).blocks)
    expected = {count(block) for block in blocks}
    moe = {shape.moe_block_parameters} if shape.moe_layers else set()
    dense = {shape.dense_block_parameters} if shape.moe_layers < shape.layers else set()
    assert expected == moe | dense
    assert shape.block_parameters in expected


@every_case
def test_linears(family: str, sizes: dict[str, Any]) -> None:
    model, shape = build(family, sizes, tied=False)
    where = family_of({"model_type": family})
    blocks = model.get_submodule(where.blocks)
    expected = [*shape.attention_linears, *shape.mlp_linears]
    if shape.moe_layers < shape.layers:
        assert linears(blocks[0]) == sorted(expected)
    if shape.moe_layers:
        gate = Linear("shared_expert_gate", 1, shape.hidden_size, bias=False)
        expected = [*shape.attention_linears, *shape.shared_expert_linears]
        expected += [gate] if shape.shared_expert_gate else []
        assert linears(blocks[len(blocks) - 1]) == sorted(expected)
    else:
        names = [path.rsplit(".", 1)[-1] for path in where.linears]
        assert names == [one.name for one in expected]
    for block in blocks:
        assert {path for path, _ in block.named_modules()} >= set(where.linears)


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3"])
def test_experts(family: str) -> None:
    sizes = next(sizes for name, sizes in CASES if name == family)
    model, shape = build(family, sizes, tied=False)
    blocks = model.get_submodule("model.layers")
    experts = blocks[len(blocks) - 1].mlp.experts
    assert shape.experts * shape.expert_parameters == count(experts)
    names = [one.name for one in shape.expert_linears]
    assert names == ["gate_up_proj", "down_proj"]
    idle = shape.experts - shape.experts_per_token
    unused = sum(
        idle * count(block.mlp.experts) // shape.experts
        for block in blocks
        if hasattr(block.mlp, "experts")
    )
    assert shape.active_parameters == count(model) - unused


def test_every_family_is_covered() -> None:
    covered = {name for name, _ in CASES}
    assert set(plugin_names("qdeploy.models.families")) == covered | REMOTE_CODE
