"""Weights, masters, gradients, optimizer states against the papers' and DeepSpeed's formulas."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.models.linear import Linear
from qdeploy.plan.job import Job, find_optimizer
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.gradients import (
    gradients_in_backward_bytes,
    gradients_in_forward_bytes,
    gradients_in_step_bytes,
    step_copy_bytes,
)
from qdeploy.plan.terms.master_weights import master_weights_bytes
from qdeploy.plan.terms.optimizer import optimizer_bytes, states_bytes, step_copies_bytes
from qdeploy.plan.terms.weights import base_bytes, nf4_bytes, weights_bytes

GB = 10**9
P = 7 * GB


def states(job: Job, layout: Layout) -> int:
    terms = (weights_bytes, master_weights_bytes, gradients_in_backward_bytes, optimizer_bytes)
    return sum(term(job, layout) for term in terms) + step_copy_bytes(job, layout)


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
    job, layout = planning.job(gpus=2), planning.layout("ddp")
    assert gradients_in_backward_bytes(job, layout) == 2 * 4 * P
    once = planning.job(gpus=2, accumulation_steps=1)
    assert gradients_in_forward_bytes(once, layout) == 4 * P  # the reducer's buckets stay


def test_gradients_of_one_pass_are_not_there_in_the_next_forward(planning: Any) -> None:
    once, twice = planning.job(accumulation_steps=1), planning.job(accumulation_steps=2)
    layout = planning.layout("none")
    assert gradients_in_forward_bytes(once, layout) == 0
    assert gradients_in_forward_bytes(twice, layout) == 4 * P
    zero3 = planning.layout("zero3")
    permanent = gradients_in_forward_bytes(planning.job(gpus=2, accumulation_steps=1), zero3)
    assert permanent == 2 * P // 2


def test_fp32_gradients_of_deepspeed(planning: Any) -> None:
    # bf16_optimizer.py keeps all of them whole in ZeRO-1, and steps on them; ZeRO-2 copies its
    # share, counted on the tensors that its engine holds.
    job = planning.job(gpus=4, gradient_type="fp32")
    assert gradients_in_backward_bytes(job, planning.layout("zero1")) == 4 * P
    assert gradients_in_backward_bytes(job, planning.layout("zero2")) == 4 * P // 4
    assert step_copy_bytes(job, planning.layout("zero1")) == 0
    assert step_copy_bytes(job, planning.layout("zero2")) == 4 * P // 4


def test_zero1_steps_with_its_own_share(planning: Any) -> None:
    job, layout = planning.job(gpus=4), planning.layout("zero1")
    assert gradients_in_backward_bytes(job, layout) == 2 * P
    assert gradients_in_step_bytes(job, layout) == 2 * P // 4
    zero2 = planning.layout("zero2")
    assert gradients_in_step_bytes(job, zero2) == gradients_in_backward_bytes(job, zero2)


def test_an_optimizer_in_the_backward_pass_leaves_one_gradient(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", precision="bf16-pure", optimizer_in_backward=True)
    layout = planning.layout("none")
    assert gradients_in_backward_bytes(job, layout) == 2 * 32000 * 4096
    assert gradients_in_forward_bytes(job, layout) == 0


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
    job, layout = planning.job(optimizer=name), planning.layout("none")
    assert states_bytes(job, layout, 1_000_000) == bytes_per_million
    assert states_bytes(job, layout, 0) == 0


LLAMA_7B = [(4096, 4096)] * 4 + [(11008, 4096)] * 2 + [(4096, 11008)]


def test_adafactor_keeps_rows_and_columns(planning: Any) -> None:
    numbers = sum(32 * (out + into) for out, into in LLAMA_7B)
    numbers += 65 * 4096 + 2 * (32000 + 4096)
    job, layout = planning.job(model="llama-2-7b", optimizer="adafactor"), planning.layout("none")
    assert optimizer_bytes(job, layout) == 4 * numbers
    assert step_copies_bytes(job, layout) == 2 * 4 * 32000 * 4096


def test_muon_keeps_one_momentum_for_the_matrices_of_the_blocks(planning: Any) -> None:
    matrices = sum(32 * out * into for out, into in LLAMA_7B)
    rest = 65 * 4096 + 2 * 32000 * 4096
    job = planning.job(model="llama-2-7b", optimizer="muon", gpus=2)
    assert optimizer_bytes(job, planning.layout("none")) == 4 * matrices + 8 * rest
    shared = optimizer_bytes(job, planning.layout("zero1"))
    assert shared == pytest.approx((4 * matrices + 8 * rest) / 2, abs=16)


def test_foreach_adamw_copies_the_states_while_it_steps(planning: Any) -> None:
    job, layout = planning.job(optimizer="adamw_foreach"), planning.layout("none")
    assert step_copies_bytes(job, layout) == 4 * P
    assert step_copies_bytes(planning.job(), layout) == 0


def test_lora_counts_against_a_slow_sum(planning: Any) -> None:
    job = planning.job(model="llama-3.1-8b", peft="lora", lora_rank=8)
    slow = 0
    for _ in range(32):
        for out, into in [
            (4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096),
            (14336, 4096), (14336, 4096), (4096, 14336),
        ]:  # fmt: skip
            slow += 8 * into + out * 8
    assert job.trainable == job.held_trained.total == slow


def test_lora_on_some_linears(planning: Any) -> None:
    job = planning.job(model="llama-3.1-8b", peft="lora", lora_rank=8, lora_targets=("k_proj",))
    assert job.trainable == 32 * 8 * (4096 + 1024)
    with pytest.raises(UnknownNameError, match="k_prj"):
        planning.job(model="llama-3.1-8b", peft="lora", lora_targets=("k_prj",)).trainable  # noqa: B018


def test_lora_rank_over_the_dimensions(planning: Any) -> None:
    with pytest.raises(InputError, match="rank 129 is more than k_proj has dimensions: 128 x 896"):
        planning.plan(model="qwen2.5-0.5b", peft="lora", lora_rank=129, lora_targets=("k_proj",))
    planning.plan(model="qwen2.5-0.5b", peft="lora", lora_rank=128, lora_targets=("k_proj",))


def test_embeddings_trained_beside_adapters(planning: Any) -> None:
    fields = {"model": "llama-2-7b", "peft": "lora"}
    plain, trained = planning.job(**fields), planning.job(**fields, train_embeddings=True)
    tables = 2 * 32000 * 4096
    assert trained.trainable == plain.trainable + tables
    assert trained.frozen == plain.frozen - tables
    layout = planning.layout("none")
    # An FP32 copy with gradients and Adam for each weight of the tables, less their frozen form.
    more = states(trained, layout) - states(plain, layout)
    assert more == (16 - 2) * tables


def test_lora_charges_only_adapters(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", peft="lora", gpus=2)
    zero2, zero3 = planning.layout("zero2"), planning.layout("zero3")
    assert job.frozen == 6_738_415_616
    assert weights_bytes(job, zero2) == 2 * (job.frozen + job.trainable)
    assert optimizer_bytes(job, zero2) == 8 * (job.trainable // 2)
    assert weights_bytes(job, zero3) == job.frozen + job.trainable
    # DDP's buckets are a second copy of the gradients.
    assert states(job, planning.layout("ddp")) == 2 * job.frozen + 20 * job.trainable


def test_qlora_base_of_qwen() -> None:
    # 16 weights a byte pair: 32 B for 64 weights, 1 B a scale, 4 B for 256 scales.
    assert nf4_bytes(64 * 256) == 64 * 256 // 2 + 256 + 4
    assert nf4_bytes(1) == 1 + 1 + 4
    assert nf4_bytes(64 * 3, double_quantized=False) == 32 * 3 + 4 * 3


def test_other_bases() -> None:
    linear = Linear("x", 10, 300, bias=False)
    # Three groups of up to 128 a row: an FP16 scale and half a byte of zero point each.
    assert base_bytes("gptq-int4", linear) == 1500 + 2 * 30 + 15
    assert base_bytes("int8", linear) == 3000 + 2 * 10
    assert base_bytes("16bit", linear) == 2 * 3000


def test_qlora_loads_as_measured(planning: Any) -> None:
    # DaoyuanLi2816/can-i-finetune-this: Qwen2.5-7B takes 7.2 GiB after kbit preparation.
    job = planning.job(model="qwen2.5-7b", peft="qlora")
    frozen = weights_bytes(job, planning.layout("none")) - 4 * job.trainable
    assert frozen / 2**30 == pytest.approx(7.2, abs=0.05)
