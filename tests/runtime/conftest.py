"""Small random models of several families that share the tiny LLaMA's tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from qdeploy.runtime.model import LoadedModel

# Weights this large make answers vary; transformers' 0.02 gives one token over and over.
_WIDE = {"initializer_range": 0.4}


def _model(family: str, vocab_size: int) -> Any:
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {
        "vocab_size": vocab_size, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "tie_word_embeddings": False,
    }  # fmt: skip
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes, **ends, **_WIDE))
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**sizes, **ends, **_WIDE))
    if family == "gemma3_text":
        windows = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
        config = Gemma3TextConfig(**sizes, **ends, **_WIDE, **windows, head_dim=12)
        return Gemma3ForCausalLM(config)
    shape = {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **shape, **ends, **_WIDE))


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by threads, most of all beside other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def random_model(tiny_llama: Path) -> Callable[..., LoadedModel]:
    """Makes a random model of a family; `end_ids` as given."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)

    def make(family: str, *, seed: int = 0, end_ids: frozenset[int] = frozenset()) -> LoadedModel:
        torch.manual_seed(seed)
        model = _model(family, len(tokenizer)).eval().requires_grad_(False)
        return LoadedModel("tiny", model, tokenizer, end_ids, 128)

    return make


@pytest.fixture(scope="session")
def mixed_prompts(tiny_llama: Path) -> list[list[int]]:
    """Eight prompts of 1 to 24 token ids."""
    torch.manual_seed(7)
    lengths = [3, 24, 1, 9, 9, 17, 2, 24]
    vocab_size = len(AutoTokenizer.from_pretrained(tiny_llama))
    return [torch.randint(3, vocab_size, (length,)).tolist() for length in lengths]
