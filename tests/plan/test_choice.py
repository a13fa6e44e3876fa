from __future__ import annotations

from typing import Any

import pytest

from qdeploy.plan.schema import PARTS, Plan
from qdeploy.plan.step_time import step_seconds


@pytest.mark.parametrize("model", ["7B", "llama-2-7b"])
@pytest.mark.parametrize(("gpus", "strategy"), [(2, "zero3"), (4, "zero2"), (8, "zero1")])
def test_rule_of_thumb_decides_among_near_ones(
    planning: Any, model: str, gpus: int, strategy: str
) -> None:
    chosen = planning.plan(model=model, gpus=gpus).chosen
    assert chosen.strategy == strategy
    assert chosen.offload == "none"
    assert chosen.fits


def test_article_chooses_zero3_on_two_and_zero2_on_four(planning: Any) -> None:
    for gpus, strategy in ((2, "zero3"), (4, "zero2")):
        assert planning.plan(gpus=gpus, accounting="article").chosen.strategy == strategy


def test_slow_links_avoid_gathering(planning: Any) -> None:
    result = planning.plan(model="llama-3.1-8b", gpu="L40S", gpus=8, seq_len=512)
    gathered = [c for c in result.candidates if c.strategy == "zero3" and c.offload == "none"]
    reduced = [c for c in result.candidates if c.strategy == "zero2" and c.offload == "none"]
    assert gathered[0].relative_step_time > 1.15 * reduced[0].relative_step_time


def test_small_model_is_not_sharded(planning: Any) -> None:
    assert planning.plan(model="gpt2", gpus=4, seq_len=1024).chosen.strategy == "ddp"
    assert planning.plan(model="gpt2", seq_len=1024).chosen.strategy == "none"


def test_one_gpu_may_offload(planning: Any) -> None:
    result = planning.plan(gpus=1)
    assert {(c.strategy, c.offload) for c in result.candidates} == {
        ("none", "none"), ("zero2", "optimizer"), ("zero3", "optimizer"), ("zero3", "all"),
    }  # fmt: skip
    assert result.chosen.offload == "optimizer"
    assert any("host of each node needs" in warning for warning in result.warnings)


def test_parts_add_up(planning: Any) -> None:
    for accounting in ("article", "deepspeed", "torch"):
        for one in planning.plan(gpus=4, accounting=accounting).candidates:
            parts = sum(getattr(one.per_gpu, f"{part}_bytes") for part in PARTS)
            assert parts == one.per_gpu.total_bytes
            assert one.per_gpu.low_bytes <= one.per_gpu.total_bytes <= one.per_gpu.high_bytes
            assert one.relative_step_time >= 1.0
            assert one.reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "llama-3.1-8b", "peft": "lora", "gpu": "RTX-4090", "seq_len": 4096,
          "strategy": "none", "checkpointing": True}, "liger"),
        ({"micro_batch": 64, "gpus": 8, "checkpointing": True, "loss": "liger",
          "strategy": "zero3", "offload": "none", "seq_len": 4096}, "--micro-batch"),
        ({"checkpointing": False, "gpus": 2, "micro_batch": 4, "offload": "none"},
         "--checkpointing"),
        ({"model": "70B", "strategy": "none"}, "--strategy"),
        ({"model": "70B", "gpus": 4, "offload": "none"}, "--offload"),
    ],
)  # fmt: skip
def test_suggests_the_smallest_change(planning: Any, fields: dict[str, Any], words: str) -> None:
    result = planning.plan(**fields)
    assert result.chosen is None
    assert words in result.suggestion


def test_nothing_helps(planning: Any) -> None:
    result = planning.plan(model="90000B", gpu="T4")
    assert result.chosen is None
    assert result.suggestion is None


def test_suggestion_really_fits(planning: Any) -> None:
    fields = {"gpus": 2, "micro_batch": 4, "checkpointing": False, "offload": "none"}
    assert planning.plan(**fields).suggestion == "the smallest change that fits: --checkpointing"
    assert planning.plan(**{**fields, "checkpointing": True}).chosen is not None


def test_step_time_by_hand(planning: Any) -> None:
    job = planning.job(gpus=2, accumulation_steps=1)
    shape, filled = job.shape, 2048 / (2048 + 512)
    attention = shape.layers * shape.heads * shape.head_dim * 2048
    compute = 6 * (7e9 + attention) * 2048 / (312e12 * 0.5 * filled)
    link = 600e9 / 2 * 0.8
    zero2 = compute + 0.5 * (2 + 2) * 7e9 / 2 / link
    zero3 = compute + 0.5 * 6 * 7e9 / 2 / link
    assert step_seconds(job, planning.layout("zero2", checkpointing=False)) == pytest.approx(zero2)
    assert step_seconds(job, planning.layout("zero3", checkpointing=False)) == pytest.approx(zero3)
    again = planning.layout("zero2", checkpointing=True)
    assert step_seconds(job, again) == pytest.approx(zero2 + compute / 3)
    offloaded = step_seconds(job, planning.layout("zero2", "optimizer", checkpointing=False))
    assert offloaded == pytest.approx(zero2 + 4 * 3.5e9 / (32e9 * 0.8) + 28 * 7e9 / 100e9)


def test_precision_block(planning: Any) -> None:
    ampere = planning.plan(gpu="A30", model="gpt2", seq_len=512).precision
    assert (ampere.dtype, ampere.loss_scaling, ampere.adam_eps) == ("bf16", "none", 1e-8)
    volta = planning.plan(gpu="V100-16GB", model="gpt2", seq_len=512)
    assert volta.precision.dtype == "fp16"
    assert volta.precision.loss_scaling == "dynamic"
    assert volta.precision.adam_eps >= 1e-6
    assert "no BF16" in volta.precision.reason
    assert volta.warnings == [volta.precision.reason]


def test_plan_is_an_artifact(planning: Any, tmp_path: Any) -> None:
    from qdeploy.core.artifacts import read_artifact

    result = planning.plan(gpus=4)
    path = tmp_path / "计划.json"
    result.write(path)
    assert read_artifact(path, Plan) == result
    assert set(result.inputs) == {"model", "gpu"}
    assert '"schema": "qdeploy.plan/1"' in path.read_text(encoding="utf-8")
