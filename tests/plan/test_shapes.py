"""Shipped shapes against published totals, and counts against transformers' own models."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.toml import read_toml
from qdeploy.models.family import shape_of
from qdeploy.models.shipped_shapes import shipped_shape, shipped_shape_names

# Totals that the hub shows for the safetensors files of each model.
PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-8b": 8_190_735_360,
    "gemma-3-1b": 999_885_952,
    "gpt2": 124_439_808,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", shipped_shape_names())
def test_published_total(name: str) -> None:
    known = shipped_shape(name)
    assert known is not None
    assert known.parameters == known.shape.parameters == PUBLISHED[name]
    data, _ = read_toml("qdeploy.models.shapes", name)
    assert data["source"].startswith("https://")
    for alias in data["aliases"]:
        assert shipped_shape(alias) == known


def test_names_ignore_case_and_need_the_whole_name() -> None:
    assert shipped_shape("META-LLAMA/llama-2-7B-HF") == shipped_shape("llama-2-7b")
    assert shipped_shape("llama-2") is None
    assert shipped_shape("") is None


@pytest.mark.parametrize(
    ("name", "parameters", "hidden", "layers"),
    [("7B", 7 * 10**9, 4096, 32), ("13b", 13 * 10**9, 5120, 40), ("350M", 35 * 10**7, 1408, 11)],
)
def test_bare_sizes(name: str, parameters: int, hidden: int, layers: int) -> None:
    known = shipped_shape(name)
    assert known is not None
    assert known.parameters == parameters
    assert (known.shape.hidden_size, known.shape.layers) == (hidden, layers)


@pytest.mark.parametrize("name", ["0B", "B", "7", "-7B", "7BB", "7 tons"])
def test_no_size(name: str) -> None:
    assert shipped_shape(name) is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gpt2"])
def test_counts_agree_with_transformers(family: str, bias: bool, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if family == "gpt2":
        sizes: dict[str, Any] = {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 64}
    else:
        sizes = {
            "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
        }  # fmt: skip
    if family == "llama":
        sizes |= {"attention_bias": bias, "mlp_bias": bias}
    config = transformers.AutoConfig.for_model(
        family, vocab_size=101, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=1,
        pad_token_id=0, **sizes,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert shape_of(config.to_dict(), family).parameters == counted
