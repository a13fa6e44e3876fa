"""Against published measured peaks: all rows that were compared, the misses too.

Two constants come from some of the rows themselves: the stock loss's 16 bytes a logit (slope of
can-i-finetune-this) and the allocator's slack of a fifth (the same and fsdp_qlora).

DaoyuanLi2816/can-i-finetune-this benchmarks/results (RTX 4080, adapters on q, k, v, o; ours on all
linear layers, which are a few MiB more), AnswerDotAI/fsdp_qlora benchmarks_03_2024.md,
Lightning-AI/litgpt tutorials/resource-tables.md (q and v), meta-pytorch/torchtune README.md,
modelscope/ms-swift docs/source_en/LLM/Benchmark.md and examples/train/full/train.sh.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from qdeploy.models.shape import ModelShape

GB, GIB = 10**9, 2**30


def qwen(layers: int, hidden: int, heads: int, head_dim: int, inner: int) -> ModelShape:
    return ModelShape(
        name="qwen2.5", family="qwen2", layers=layers, hidden_size=hidden, heads=heads, kv_heads=2,
        head_dim=head_dim, intermediate_size=inner, vocab_size=151936, max_positions=32768,
        tied_embeddings=True, qkv_bias=True,
    )  # fmt: skip


TINY = {"gpu": "RTX-4080", "strategy": "none", "optimizer": "paged_adamw8bit", "lora_rank": 16}
FSDP = {"gpu": "RTX-3090", "gpus": 2, "lora_rank": 64, "model": "llama-2-7b"}
GPT = {"gpu": "A100-40GB", "strategy": "none", "checkpointing": False, "lora_rank": 8}
ROWS: list[tuple[dict[str, Any], str, float, int]] = [
    ({**TINY, "model": qwen(24, 896, 14, 64, 4864), "peft": "lora", "seq_len": 1024},
     "allocated", 3.03, GIB),
    ({**TINY, "model": qwen(24, 896, 14, 64, 4864), "peft": "qlora", "seq_len": 1024},
     "allocated", 3.12, GIB),
    ({**TINY, "model": qwen(24, 896, 14, 64, 4864), "peft": "qlora", "seq_len": 2048},
     "allocated", 5.52, GIB),
    ({**TINY, "model": qwen(28, 1536, 12, 128, 8960), "peft": "qlora", "seq_len": 512},
     "allocated", 2.79, GIB),
    ({**TINY, "model": qwen(36, 2048, 16, 128, 11008), "peft": "qlora", "seq_len": 1024},
     "allocated", 5.17, GIB),
    ({**TINY, "model": qwen(24, 896, 14, 64, 4864), "peft": "lora", "seq_len": 1024},
     "reserved", 3.79, GIB),
    ({**TINY, "model": qwen(24, 896, 14, 64, 4864), "peft": "qlora", "seq_len": 1024},
     "reserved", 3.3, GIB),
    ({**TINY, "model": qwen(24, 896, 14, 64, 4864), "peft": "qlora", "seq_len": 2048},
     "reserved", 6.28, GIB),
    ({**TINY, "model": qwen(28, 1536, 12, 128, 8960), "peft": "qlora", "seq_len": 512},
     "reserved", 2.91, GIB),
    ({**TINY, "model": qwen(36, 2048, 16, 128, 11008), "peft": "qlora", "seq_len": 1024},
     "reserved", 5.54, GIB),
    ({**TINY, "model": "qwen2.5-7b", "peft": "qlora", "seq_len": 1024}, "allocated", 10.0, GIB),
    ({**TINY, "model": "qwen2.5-7b", "peft": "qlora", "seq_len": 1024}, "reserved", 11.23, GIB),
    ({**FSDP, "strategy": "fsdp", "peft": "lora"}, "allocated", 9.16, GIB),
    ({**FSDP, "strategy": "fsdp", "peft": "lora"}, "reserved", 10.22, GIB),
    ({**FSDP, "strategy": "fsdp", "peft": "lora", "micro_batch": 4}, "reserved", 16.14, GIB),
    ({**FSDP, "strategy": "fsdp", "peft": "lora", "micro_batch": 6}, "reserved", 21.35, GIB),
    ({**FSDP, "strategy": "ddp", "peft": "lora", "micro_batch": 4}, "reserved", 22.04, GIB),
    ({**GPT, "model": "llama-2-7b", "peft": "lora", "micro_batch": 2, "seq_len": 1304},
     "allocated", 29.07, GB),
    ({**GPT, "model": "llama-2-13b", "peft": "lora", "seq_len": 1304}, "allocated", 38.12, GB),
    ({"gpu": "RTX-4090", "gpus": 4, "model": "llama-2-7b", "strategy": "fsdp", "micro_batch": 4,
      "precision": "bf16-pure"}, "device", 24.1, GB),
]  # fmt: skip


PURE = {"gpu": "A100-80GB", "strategy": "none", "precision": "bf16-pure", "model": ModelShape(
    name="llama-3.2-3b", family="llama", layers=28, hidden_size=3072, heads=24, kv_heads=8,
    head_dim=128, intermediate_size=8192, vocab_size=128256, max_positions=131072,
    tied_embeddings=True,
), "micro_batch": 2, "seq_len": 4096, "checkpointing": False}  # fmt: skip
SWIFT = {"gpu": "A100-80GB", "strategy": "none", "peft": "lora", "lora_rank": 8}
# Row, basis, peak, unit, and how far the plan is off, in percent.
MISSES: list[tuple[tuple[dict[str, Any], str, float, int], int]] = [
    (({**FSDP, "strategy": "ddp", "peft": "qlora", "micro_batch": 8}, "reserved", 20.94, GIB), 27),
    # ms-swift with torch 2.1, whose loss chain was longer.
    (({**SWIFT, "model": "mistral-7b", "seq_len": 2048}, "reserved", 19.89, GIB), -21),
    (({**SWIFT, "model": "mistral-7b", "seq_len": 4096}, "reserved", 23.29, GIB), -25),
    (({"gpu": "A100-80GB", "strategy": "none", "precision": "bf16-pure", "model": "qwen2.5-7b"},
      "reserved", 76, GIB), -17),
    # torchtune with its own norms and torch.compile.
    ((PURE, "allocated", 60.0, GIB), 16),
    (({**PURE, "loss": "chunked"}, "allocated", 42.9, GIB), 38),
    (({"gpu": "A100-80GB", "gpus": 8, "model": "llama-3.1-70b", "strategy": "fsdp",
       "peft": "lora", "loss": "chunked", "micro_batch": 2}, "device", 27.6, GIB), 31),
]  # fmt: skip


def error(planning: Any, row: tuple[dict[str, Any], str, float, int]) -> float:
    fields, basis, peak, unit = row
    total = planning.only(**fields, basis=basis).per_gpu.total_bytes
    return float(total / unit / peak - 1)


@pytest.mark.parametrize("row", ROWS)
def test_each_within_15_percent(planning: Any, row: tuple[dict[str, Any], str, float, int]) -> None:
    assert abs(error(planning, row)) < 0.15


def test_mean_within_7_percent(planning: Any) -> None:
    assert mean(abs(error(planning, row)) for row in ROWS) < 0.07


@pytest.mark.parametrize(("row", "percent"), MISSES)
def test_known_misses_are_what_the_docs_say(
    planning: Any, row: tuple[dict[str, Any], str, float, int], percent: int
) -> None:
    assert round(100 * error(planning, row)) == percent


def test_mean_of_all_rows(planning: Any) -> None:
    every = [*ROWS, *(row for row, _ in MISSES)]
    assert len(every) == 27
    assert mean(abs(error(planning, row)) for row in every) < 0.12
