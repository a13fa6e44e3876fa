"""Weights, masters, gradients, optimizer states against the papers' and DeepSpeed's formulas."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.plan.adapters import adapter_parameters
from qdeploy.plan.job import Job, find_optimizer
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.gradients import gradients_bytes, held_gradients_bytes, step_copy_bytes
from qdeploy.plan.terms.master_weights import master_weights_bytes
from qdeploy.plan.terms.optimizer import optimizer_bytes, states_bytes
from qdeploy.plan.terms.weights import nf4_bytes, weights_bytes

GB = 10**9
P = 7 * GB


def states(job: Job, layout: Layout) -> int:
    terms = (weights_bytes, master_weights_bytes, gradients_bytes, optimizer_bytes)
    return sum(term(job, layout) for term in terms)


@pytest.mark.parametrize(("stage", "gb"), [("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.88)])
def test_zero_paper(planning: Any, stage: str, gb: float) -> None:
    # arXiv 1910.02054, figure 1: 7.5B, 64 GPUs, K = 12, without DeepSpeed's FP32 copy.
    job, layout = planning.job(model="7.5B", gpus=8, nodes=8), planning.layout(stage)
    ours = states(job, layout) - step_copy_bytes(job, layout)
    assert ours / GB == pytest.approx(gb, rel=0.003)


def test_zero_paper_baseline(planning: Any) -> None:
    job, layout = planning.job(model="7.5B", precision="fp32"), planning.layout("none")
    assert states(job, layout) == 120 * GB


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_zero2_agrees_with_deepspeeds_estimator(planning: Any, world: int) -> None:
    job, layout = planning.job(gpus=world), planning.layout("zero2")
    assert states(job, layout) == pytest.approx(2 * P + 18 * P / world, abs=100)


def test_zero1_is_what_the_old_zero2_formula_said(planning: Any) -> None:
    job, layout = planning.job(gpus=4), planning.layout("zero1")
    assert states(job, layout) == 4 * P + 16 * P // 4


def test_zero3_lies_around_deepspeeds_estimator(planning: Any) -> None:
    for gpus, nodes in ((2, 1), (8, 1), (8, 8)):
        job, layout = planning.job(gpus=gpus, nodes=nodes), planning.layout("zero3")
        world = gpus * nodes
        share = -(-P // world)
        assert states(job, layout) == 16 * share + 4 * min(10**9, share)


@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_optimizer_offload_leaves_weights_only(planning: Any, stage: str) -> None:
    job, layout = planning.job(gpus=2), planning.layout(stage, "optimizer")
    assert states(job, layout) == (2 * P if stage == "zero2" else P)


def test_all_offload_leaves_nothing(planning: Any) -> None:
    assert states(planning.job(gpus=2), planning.layout("zero3", "all")) == 0


def test_torch_mixed_precision_and_fsdp(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", gpus=4)
    count = job.parameters
    none = planning.layout("none")
    matrices = count - 32000 * 4096 - 65 * 4096  # no embedding, no norms
    assert weights_bytes(job, none) == 2 * matrices
    assert master_weights_bytes(job, none) == 4 * count
    assert optimizer_bytes(job, none) == 8 * count
    assert states(job, planning.layout("fsdp")) == 16 * -(-count // 4)


def test_ddp_holds_gradients_twice(planning: Any) -> None:
    ddp = held_gradients_bytes(planning.job(gpus=2), planning.layout("ddp"))
    assert ddp == 2 * held_gradients_bytes(planning.job(), planning.layout("none"))


def test_pure_bf16_is_8_bytes(planning: Any) -> None:
    job, layout = planning.job(precision="bf16-pure"), planning.layout("none")
    assert states(job, layout) == 8 * P


@pytest.mark.parametrize(
    ("name", "bytes_per_million"),
    [
        ("adamw", 8_000_000),
        ("paged_adamw", 8_000_000),
        ("lion", 4_000_000),
        ("sgd", 0),
        ("sgd_momentum", 4_000_000),
        ("adamw8bit", 2 * (1_000_000 + 4 * 3907)),
        ("paged_adamw8bit", 2 * (1_000_000 + 4 * 3907)),
    ],
)
def test_optimizer_states(planning: Any, name: str, bytes_per_million: int) -> None:
    assert find_optimizer(name).source
    assert states_bytes(planning.job(optimizer=name), 1_000_000) == bytes_per_million
    assert states_bytes(planning.job(optimizer=name), 0) == 0


def test_lora_counts_against_a_slow_sum(planning: Any) -> None:
    shape = planning.job(model="llama-3.1-8b").shape
    slow = 0
    for _ in range(32):
        for out, into in [
            (4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096),
            (14336, 4096), (14336, 4096), (4096, 14336),
        ]:  # fmt: skip
            slow += 8 * into + out * 8
    assert adapter_parameters(shape, 8) == slow


def test_lora_charges_only_adapters(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", peft="lora", gpus=2)
    zero2, zero3 = planning.layout("zero2"), planning.layout("zero3")
    assert job.frozen == 6_738_415_616
    assert weights_bytes(job, zero2) == 2 * (job.frozen + job.trainable)
    assert optimizer_bytes(job, zero2) == 8 * (job.trainable // 2)
    assert weights_bytes(job, zero3) == job.frozen + job.trainable


def test_qlora_base_of_qwen() -> None:
    # 16 weights a byte pair: 32 B for 64 weights, 1 B a scale, 4 B for 256 scales.
    assert nf4_bytes(64 * 256) == 64 * 256 // 2 + 256 + 4
    assert nf4_bytes(1) == 1 + 1 + 4


def test_qlora_loads_as_measured(planning: Any) -> None:
    # DaoyuanLi2816/can-i-finetune-this: Qwen2.5-7B takes 7.2 GiB after kbit preparation.
    job = planning.job(model="qwen2.5-7b", peft="qlora")
    frozen = weights_bytes(job, planning.layout("none")) - 2 * job.trainable
    assert frozen / 2**30 == pytest.approx(7.2, abs=0.05)
