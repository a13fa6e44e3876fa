"""What a block keeps: the closed formula and the trace of the class itself agree within 2 %."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qdeploy.core.errors import InputError

from .agreement import (
    AUTOCAST,
    FP32,
    LOW_AUTOCAST,
    PURE,
    adapters,
    block_run,
    compare,
)  # fmt: skip
from .architectures import ARCHITECTURES, FLASH_NOT_TRACED, NO_FLASH, config

WITH_FLASH = [name for name in ARCHITECTURES if name not in NO_FLASH | FLASH_NOT_TRACED]
PLAIN = ["llama", "qwen3", "gemma3_text", "phi", "gpt2", "qwen2_moe", "deepseek_v3", "bert"]


def agrees(name: str, run: Any, **other: Any) -> None:
    found = compare(config(name, **other), run)
    assert found.formula == pytest.approx(found.traced, rel=0.02)


@pytest.mark.parametrize(
    "run", [PURE, replace(AUTOCAST, attention="eager")], ids=["bf16 sdpa", "autocast eager"]
)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_full_training(name: str, run: Any) -> None:
    agrees(name, run)


@pytest.mark.parametrize("name", PLAIN)
def test_autocast_with_sdpa(name: str) -> None:
    agrees(name, AUTOCAST)


@pytest.mark.parametrize("name", WITH_FLASH)
def test_flash(name: str) -> None:
    agrees(name, replace(AUTOCAST, attention="flash"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "deepseek_v2", "bert"])
def test_padded_flash(name: str) -> None:
    agrees(name, replace(PURE, attention="flash", padded=True))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen3_moe", "deepseek_v2", "opt"])
def test_fp32(name: str) -> None:
    agrees(name, FP32)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "mixtral", "phi3", "falcon"])
def test_padded_sdpa(name: str) -> None:
    agrees(name, replace(AUTOCAST, padded=True))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_grouped_queries_without_a_flash_kernel_keep_all_scores(name: str) -> None:
    agrees(name, replace(PURE, sdpa_flash=False))


@pytest.mark.parametrize("name", PLAIN)
def test_lora(name: str) -> None:
    agrees(name, replace(LOW_AUTOCAST, adapters=adapters(config(name))))


@pytest.mark.parametrize("run", [PURE, LOW_AUTOCAST, AUTOCAST], ids=["bf16", "low", "autocast"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_lora_with_dropout(name: str, run: Any) -> None:
    agrees(name, replace(run, adapters=adapters(config(name), dropout=0.1)))


@pytest.mark.parametrize("name", PLAIN)
def test_qlora(name: str) -> None:
    agrees(name, replace(LOW_AUTOCAST, adapters=adapters(config(name), quantized=True)))


def test_lora_on_some_linears() -> None:
    some = replace(adapters(config("llama")), targets=frozenset({"q_proj", "v_proj"}))
    agrees("llama", replace(PURE, adapters=some))


@pytest.mark.parametrize(("batch", "seq_len"), [(1, 1), (1, 33), (3, 7)])
def test_odd_batches(batch: int, seq_len: int) -> None:
    agrees("llama", replace(PURE, batch=batch, seq_len=seq_len))


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gpt2", "gemma2", "mixtral", "bert"])
@pytest.mark.parametrize("run", [PURE, AUTOCAST], ids=["bf16", "autocast"])
def test_working_bytes(name: str, run: Any) -> None:
    found = compare(config(name), run)
    assert found.formula_working == pytest.approx(found.traced_working, abs=0.03 * found.traced)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bert", "bloom"])
def test_working_bytes_of_long_eager_attention(name: str) -> None:
    found = compare(config(name), replace(PURE, seq_len=512, attention="eager"))
    assert found.formula_working == pytest.approx(found.traced_working, abs=0.03 * found.traced)


@pytest.mark.parametrize("name", sorted(NO_FLASH))
def test_no_flash_attention_is_said(name: str) -> None:
    sizes, run = config(name), replace(PURE, attention="flash")
    with pytest.raises(InputError, match="no flash attention"):
        compare(sizes, run)
    with pytest.raises(InputError, match="no flash attention"):
        from qdeploy.plan.trainers import hf

        hf.block(block_run(sizes, run))


@pytest.mark.parametrize("name", sorted(FLASH_NOT_TRACED))
def test_flash_attention_that_cannot_be_traced_is_said(name: str) -> None:
    with pytest.raises(InputError, match="that can be traced"):
        compare(config(name), replace(PURE, attention="flash"))
