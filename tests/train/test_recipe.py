from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.schema import validate
from qdeploy.train.recipe import Recipe, read_recipe

LEAST = {"model": "m", "data": {"path": "d"}, "hardware": {"gpu": "A100-80GB"}}


def recipe(**fields: Any) -> Recipe:
    return validate(Recipe, {**LEAST, **fields}, "recipe")


def test_only_three_keys_are_needed() -> None:
    least = recipe()
    assert (least.global_batch, least.learning_rate, least.adam_eps) == (8, 1e-5, 1e-8)
    for key in LEAST:
        with pytest.raises(InputError, match=f"'{key}' is missing"):
            validate(Recipe, {k: v for k, v in LEAST.items() if k != key}, "recipe")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"learning_rate": 1}, "unknown key 'learning_rate'"),
        ({"optimizer": {"learningrate": 1}}, "unknown key"),
        ({"optimizer": {"beta": [0.9, 0.95]}}, "did you mean 'betas'"),
        ({"data": {"path": "d", "seqlen": 5}}, "did you mean 'seq_len'"),
        ({"peft": {"kind": "lora", "ranks": 5}}, "did you mean 'rank'"),
        ({"precison": "bf16"}, "did you mean 'precision'"),
        ({"precision": "fp8"}, "precision"),
        ({"batch": {"micro_batch": 0}}, "batch.micro_batch"),
        ({"batch": {"accumulation_steps": 2, "global_batch": 8}}, "not both"),
        ({"loss_scaling": {"initial": 1000}}, "power of two"),
        ({"precision": "fp16", "optimizer": {"eps": 1e-8}}, "1e-06"),
        ({"strategy": {"deepspeed": {}}}, "strategy.name"),
        ({"strategy": {"name": "ddp", "deepspeed": "ds.json"}}, "zero1, zero2, zero3"),
        ({"schedule": {"warmup": 1.0}}, "schedule.warmup"),
        ({"schema": "qdeploy.recipe/2"}, "schema"),
        ({"qat": "int2"}, "qat"),
    ],
)
def test_what_is_wrong_is_named(fields: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        recipe(**fields)


@pytest.mark.parametrize(
    ("precision", "eps", "expected"),
    [("bf16", None, 1e-8), ("fp32", None, 1e-8), ("fp16", None, 1e-6), ("fp16", 1e-4, 1e-4),
     ("bf16", 1e-5, 1e-5)],
)  # fmt: skip
def test_eps(precision: str, eps: float | None, expected: float) -> None:
    assert recipe(precision=precision, optimizer={"eps": eps}).adam_eps == expected


@pytest.mark.parametrize(
    ("batch", "gpus", "nodes", "steps", "whole"),
    [
        ({}, 1, 1, 8, 8),
        ({"micro_batch": 2, "accumulation_steps": 3}, 4, 2, 3, 48),
        ({"micro_batch": 2, "global_batch": 64}, 8, 1, 4, 64),
        ({"global_batch": 1}, 1, 1, 1, 1),
    ],
)
def test_batch(batch: Any, gpus: int, nodes: int, steps: int, whole: int) -> None:
    made = recipe(batch=batch, hardware={"gpu": "A100-80GB", "gpus": gpus, "nodes": nodes})
    assert (made.accumulation_steps, made.global_batch) == (steps, whole)


def test_model_parallel_gpus_share_a_batch() -> None:
    made = recipe(
        parallel={"tensor": 2, "pipeline": 2},
        hardware={"gpu": "A100-80GB", "gpus": 8},
        batch={"micro_batch": 1, "accumulation_steps": 1},
    )
    assert made.global_batch == 2


@pytest.mark.parametrize(
    ("optimizer", "peft", "expected"),
    [
        ({}, None, 1e-5),
        ({}, {"kind": "lora"}, 1e-4),
        ({"lr": 3e-6}, {"kind": "qlora"}, 3e-6),
        ({"lr": 1e-5, "lr_for_batch": 16}, None, 2e-5),
        ({"lr": 1e-5, "lr_for_batch": 64}, None, 5e-6),
    ],
)
def test_linear_learning_rate_rule(optimizer: Any, peft: Any, expected: float) -> None:
    batch = {"micro_batch": 4, "accumulation_steps": 8}
    assert recipe(optimizer=optimizer, peft=peft, batch=batch).learning_rate == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    ("peft", "alpha"),
    [(None, 0), ({"kind": "lora", "rank": 8}, 16), ({"kind": "lora", "alpha": 5}, 5)],
)
def test_alpha(peft: Any, alpha: int) -> None:
    assert recipe(peft=peft).lora_alpha == alpha


def test_reading_unicode(tmp_path: Path) -> None:
    path = tmp_path / "配方.yaml"
    path.write_text(
        "model: ./模型\ndata: {path: 数据/}\nhardware: {gpu: cpu, gpus: 2}\n", encoding="utf-8"
    )
    assert read_recipe(path).data.path == "数据/"


@pytest.mark.parametrize("text", ["", "- a", "model: [", "model: m"])
def test_reading_what_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"r\.yaml"):
        read_recipe(path)
