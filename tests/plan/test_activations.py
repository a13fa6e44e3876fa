"""How the kept tensors of one block become those of a run: checkpointing, pipelines, offload."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.plan.saved import BlockRun, Saved, saved_bytes
from qdeploy.plan.terms.activations import (
    block_run,
    kept_bytes,
    recomputed_bytes,
    residual_bytes,
    working_bytes,
)

MODEL = "llama-2-7b"
H, L = 4096, 32


def of_block(job: Any, layout: Any) -> int:
    run = block_run(job, layout, "none", moe=False)
    return job.tokens * saved_bytes(run, job.trainer.block(run), tensor=1, sequence=1)


def outside(job: Any, residual: int) -> int:
    """The final norm's FP32 input and its output, and the head's input."""
    return job.tokens * H * (4 + residual + job.compute_bytes)


def test_every_block_keeps_its_tensors(planning: Any) -> None:
    job, layout = planning.job(model=MODEL), planning.layout("zero2", checkpointing=False)
    assert kept_bytes(job, layout) == L * of_block(job, layout) + outside(job, 2)
    assert recomputed_bytes(job, layout) == 0


def test_checkpointing_keeps_inputs_and_brings_one_block_back(planning: Any) -> None:
    job, layout = planning.job(model=MODEL, micro_batch=2), planning.layout("zero2")
    assert kept_bytes(job, layout) == L * 2 * H * job.tokens + outside(job, 2)
    assert recomputed_bytes(job, layout) == of_block(job, layout)


@pytest.mark.parametrize(
    ("fields", "strategy", "size"),
    [
        ({}, "zero2", 2),
        ({}, "none", 4),
        ({}, "fsdp", 2),
        ({"precision": "bf16-pure"}, "none", 2),
        ({"precision": "fp32"}, "none", 4),
        ({"peft": "lora"}, "none", 2),
        ({"peft": "qlora"}, "none", 4),
        ({"peft": "qlora", "trainer": "fsdp-qlora"}, "none", 2),
    ],
)
def test_type_of_the_residual_stream(
    planning: Any, fields: dict[str, Any], strategy: str, size: int
) -> None:
    job, layout = planning.job(model=MODEL, gpus=2, **fields), planning.layout(strategy)
    assert residual_bytes(job, layout) == size


def test_a_first_stage_has_as_many_micro_batches_as_stages(planning: Any) -> None:
    from dataclasses import replace

    job = planning.job(model=MODEL, gpus=4, pipeline_parallel=4, accumulation_steps=8)
    layout = planning.layout("none", checkpointing=False)
    first, last = replace(job, stage="first"), replace(job, stage="last")
    block = of_block(job, layout)
    assert kept_bytes(first, layout) == 4 * 8 * block
    assert kept_bytes(last, layout) == 8 * block + outside(job, 4)
    short = replace(first, request=replace(job.request, accumulation_steps=2))
    assert kept_bytes(short, layout) == 2 * 8 * block


def test_offloaded_activations_leave_two_blocks(planning: Any) -> None:
    job = planning.job(model=MODEL, activation_offload=True)
    layout = planning.layout("zero2", checkpointing=True)
    assert kept_bytes(job, layout) == 2 * 2 * H * job.tokens + outside(job, 2)


def test_context_parallelism_divides_tokens(planning: Any) -> None:
    layout = planning.layout("fsdp", checkpointing=False)
    one = planning.job(model=MODEL, seq_len=4096, attention="flash")
    four = planning.job(model=MODEL, seq_len=4096, attention="flash", gpus=4, context_parallel=4)
    assert kept_bytes(one, layout) == pytest.approx(4 * kept_bytes(four, layout), rel=1e-3)


def test_tensors_are_divided_by_their_region() -> None:
    tensors = [Saved("inside", 80, 16, split="tensor"), Saved("between", 40, 16)]
    run: Any = type("Run", (), {"keeps": lambda self, saved: True})()
    assert saved_bytes(run, tensors, tensor=8, sequence=1) == 20 + 80
    assert saved_bytes(run, tensors, tensor=8, sequence=8) == 20 + 10
    # Halves of bytes round up.
    assert saved_bytes(run, [Saved("bits", 3, 4)], tensor=1, sequence=1) == 2


def test_kept_only_for_what_is_trained(planning: Any) -> None:
    lora = planning.job(model=MODEL, peft="lora", lora_targets=("q_proj",))
    run = block_run(lora, planning.layout("none"), "none", moe=False)
    assert isinstance(run, BlockRun)
    assert run.keeps(Saved("x", 1, 16))
    assert run.keeps(Saved("x", 1, 16, needs=frozenset({"q_proj", "k_proj"})))
    assert not run.keeps(Saved("x", 1, 16, needs=frozenset({"k_proj"})))
    full = block_run(planning.job(model=MODEL), planning.layout("none"), "none", moe=False)
    assert full.keeps(Saved("x", 1, 16, needs=frozenset({"k_proj"})))


def test_padding_and_packing(planning: Any) -> None:
    layout = planning.layout("none")
    for fields, padded in (({}, False), ({"micro_batch": 2}, True),
                           ({"micro_batch": 2, "packing": True}, False)):  # fmt: skip
        run = block_run(planning.job(model=MODEL, **fields), layout, "none", moe=False)
        assert run.padded == padded


def test_working_bytes_follow_tokens(planning: Any) -> None:
    layout = planning.layout("none")
    one, two = (working_bytes(planning.job(model=MODEL, seq_len=s), layout) for s in (512, 1024))
    assert two == 2 * one > 0
