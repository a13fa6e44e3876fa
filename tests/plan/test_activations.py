"""The closed formula against what autograd saves in transformers' own model classes."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.models.family import shape_of
from qdeploy.models.shape import ModelShape
from qdeploy.plan.terms.activations import (
    activations_bytes,
    block_bytes_per_token,
    saved_bytes_per_token,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQ_LEN = 48  # no size of the models, so that activations and weights are told apart
SIZES = {
    "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
}  # fmt: skip
CONFIGS = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma3_text": "Gemma3TextConfig",
}


def build(family: str, layers: int, attention: str, dtype: Any) -> Any:
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_embd=64, n_head=4, n_layer=layers, vocab_size=96, n_positions=128,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1,
        )  # fmt: skip
    else:
        config = getattr(transformers, CONFIGS[family])(num_hidden_layers=layers, **SIZES)
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation=attention
    ).train()


def saved_bytes(model: Any, *, autocast: bool) -> int:
    """Bytes of all storages that autograd saves and that are no parameters or buffers."""
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        is_weight_copy = autocast and tensor.dim() == 2 and SEQ_LEN not in tensor.shape
        if storage.data_ptr() not in own and not is_weight_copy:
            storages[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, 96, (1, SEQ_LEN))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        model(input_ids=ids, use_cache=False)
    return sum(storage.nbytes() for storage in storages.values())


def one_block(family: str, attention: str, dtype: Any, *, autocast: bool = False) -> int:
    """What one more block saves."""
    two, three = (build(family, layers, attention, dtype) for layers in (2, 3))
    return saved_bytes(three, autocast=autocast) - saved_bytes(two, autocast=autocast)


def shape(family: str) -> ModelShape:
    config = build(family, 2, "eager", torch.float32).config.to_dict()
    return shape_of(config, family)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [*CONFIGS, "gpt2"])
def test_bf16_block_saves_what_the_formula_says(family: str, attention: Any) -> None:
    expected = saved_bytes_per_token(
        shape(family), compute=2, residual=2, attention=attention, seq_len=SEQ_LEN
    )
    # A few bytes do not grow with tokens: Gemma saves 1 + weight; LayerNorm's statistics are
    # BF16 on a CPU, FP32 on a GPU.
    assert one_block(family, attention, torch.bfloat16) / SEQ_LEN == pytest.approx(
        expected, rel=0.005
    )


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_fp32_block(family: str) -> None:
    expected = saved_bytes_per_token(
        shape(family), compute=4, residual=4, attention="sdpa", seq_len=SEQ_LEN
    )
    assert one_block(family, "sdpa", torch.float32) / SEQ_LEN == pytest.approx(expected, rel=0.005)


def test_block_under_autocast() -> None:
    expected = saved_bytes_per_token(
        shape("llama"), compute=2, residual=4, attention="sdpa", seq_len=SEQ_LEN
    )
    ours = one_block("llama", "sdpa", torch.float32, autocast=True) / SEQ_LEN
    assert ours == pytest.approx(expected, rel=0.02)


def test_checkpointing_keeps_inputs_and_one_block(planning: Any) -> None:
    job, layout = planning.job(model="llama-2-7b", seq_len=512), planning.layout("zero3")
    inputs = 32 * 512 * 4096 * 2
    block = 512 * block_bytes_per_token(job, layout)
    assert activations_bytes(job, layout, 0) == inputs + block
    assert activations_bytes(job, layout, block + 1) == inputs
    whole = planning.layout("zero3", checkpointing=False)
    assert activations_bytes(job, whole, 10**12) == 32 * block


def test_padded_batches_repeat_keys(planning: Any) -> None:
    layout = planning.layout("zero3")
    one = block_bytes_per_token(planning.job(model="llama-3.1-8b"), layout)
    two = block_bytes_per_token(planning.job(model="llama-3.1-8b", micro_batch=2), layout)
    flash = planning.job(model="llama-3.1-8b", micro_batch=2, attention="flash")
    assert two - one == 2 * 2 * (4096 - 1024)
    assert block_bytes_per_token(flash, layout) == one
