"""What QAT is for: its INT4 export is closer to its own BF16 than plain rounding is."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from qdeploy.calib.batches import CalibBatch, CalibrationSet
from qdeploy.core.scheme import load_scheme
from qdeploy.quant.engine import quantize
from qdeploy.runtime.load import load_candidate
from qdeploy.train.qat import finish, prepare
from qdeploy.train.recipe import Recipe

TEXT = Path(__file__).parents[2] / "LICENSE"
T = 32
BATCH = 8
OUTLIER = 16.0


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokens(tiny_llama: Path) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    return torch.tensor(tokenizer(TEXT.read_text(encoding="utf-8")[:3000])["input_ids"])


def batches(tokens: torch.Tensor, count: int, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(0, len(tokens) - T, (BATCH,), generator=generator)
        yield torch.stack([tokens[start : start + T] for start in starts])


def recipe(qat: str | None) -> Recipe:
    fields = {"model": "m", "data": {"path": "d"}, "hardware": {"gpu": "cpu"}, "qat": qat}
    return Recipe.model_validate(fields)


def train(model: Any, tokens: torch.Tensor, steps: int, rate: float, qat: str | None) -> Any:
    prepare(model, recipe(qat))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step, ids in enumerate(batches(tokens, steps, seed=steps)):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    finish(model, recipe(qat))
    return model


@torch.no_grad()
def grow_outliers(model: Any) -> None:
    """Four input channels with weights 16 times as large, as trained models of size have them.

    The norms before them shrink by as much, so that the function stays.
    """
    generator = torch.Generator().manual_seed(5)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, linears in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            channels = torch.randperm(len(norm.weight), generator=generator)[:4]
            norm.weight[channels] /= OUTLIER
            for linear in linears:
                linear.weight[:, channels] *= OUTLIER


def divergence(folder: Path, tokens: torch.Tensor, work: Path) -> float:
    """Mean KL(BF16 of the folder || its INT4 export) in nats a token."""
    (ids,) = batches(tokens, 1, seed=0)
    calibration = CalibrationSet(
        batches=[CalibBatch(ids, torch.ones_like(ids))], samples=BATCH, tokens=ids.numel(),
        digest="0" * 64, files={}, seed=0, max_seq_len=T, truncated=0,
    )  # fmt: skip
    quantize(folder, calibration, load_scheme("int4-rtn"), work)
    candidates = [load_candidate("x", path, None) for path in (folder, work)]
    with torch.no_grad():
        bf16, int4 = (c.model(input_ids=ids).logits.log_softmax(-1) for c in candidates)
    return float((bf16.exp() * (bf16 - int4)).sum(-1).mean())


def test_int4_after_qat_is_closer_to_its_bf16(
    tiny_llama: Path, tokens: torch.Tensor, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=T,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    base = train(LlamaForCausalLM(config), tokens, 200, 3e-3, None)
    grow_outliers(base)
    found = {}
    for qat in (None, "int4"):
        tuned = train(copy.deepcopy(base), tokens, 60, 1e-3, qat)
        folder = tmp_path / f"{qat}"
        shutil.copytree(tiny_llama, folder)
        tuned.to(torch.bfloat16).save_pretrained(folder)
        found[qat] = divergence(folder, tokens, tmp_path / f"{qat}-int4")
    assert found[None] > 0.02, "rounding costs nothing here, so nothing can be shown"
    assert found["int4"] < 0.75 * found[None]
