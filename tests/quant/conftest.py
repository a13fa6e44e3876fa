"""Small random models of several families as folders, and calibration sets for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from qdeploy.calib.batches import CalibBatch, CalibrationSet

VOCAB = 96
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


def build(family: str) -> Any:
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=True))
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=False))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=16, tie_word_embeddings=True))
    if family == "mistral":
        config = MistralConfig(**_SIZES, sliding_window=5, tie_word_embeddings=False)
        return MistralForCausalLM(config)
    if family == "gemma3_text":
        layers = ["sliding_attention", "full_attention"]
        config = Gemma3TextConfig(**_SIZES, head_dim=16, sliding_window=5, layer_types=layers)
        return Gemma3ForCausalLM(config)
    sizes = {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": VOCAB}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3, resid_pdrop=0.0))


def save(family: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    torch.manual_seed(5)
    model = build(family)
    for name, parameter in model.named_parameters():
        # Norms and biases start at 0 or 1, and outliers are what smoothing is for.
        if parameter.dim() == 1:
            parameter.data += torch.randn_like(parameter) * 0.3
            if "norm" in name or "ln_" in name:
                parameter.data[3] *= 20
    model.to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saves a random model of a family once; not to be written to."""
    made: dict[tuple[str, torch.dtype], Path] = {}

    def get(family: str, dtype: torch.dtype = torch.bfloat16) -> Path:
        key = (family, dtype)
        if key not in made:
            made[key] = save(family, tmp_path_factory.mktemp("models") / family, dtype)
        return made[key]

    return get


def calibration(lengths: list[list[int]], seed: int = 0, padding_id: int = 0) -> CalibrationSet:
    """A batch for each list of sequence lengths; the same tokens however they are batched."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for batch in lengths:
        ids = torch.full((len(batch), max(batch)), padding_id)
        mask = torch.zeros_like(ids)
        for row, length in enumerate(batch):
            ids[row, :length] = torch.randint(3, VOCAB, (length,), generator=generator)
            mask[row, :length] = 1
        batches.append(CalibBatch(ids, mask))
    flat = [length for batch in lengths for length in batch]
    return CalibrationSet(
        batches=batches, samples=len(flat), tokens=sum(flat), digest=f"{seed:064x}",
        files={"数据.jsonl": "0" * 64}, seed=seed, max_seq_len=64, truncated=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def make_calibration() -> Callable[..., CalibrationSet]:
    """Makes a calibration set from lists of sequence lengths, one a batch."""
    return calibration


@pytest.fixture
def calib() -> CalibrationSet:
    """Two batches with padding."""
    return calibration([[20, 13, 1], [9, 4]])
