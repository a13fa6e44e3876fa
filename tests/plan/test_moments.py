"""The peak is the fullest moment of a step, not the sum of all that is there at some time."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.plan.moments import moments
from qdeploy.plan.terms.activations import kept_bytes, recomputed_bytes, working_bytes
from qdeploy.plan.terms.logits import logits_bytes
from qdeploy.plan.terms.optimizer import step_copies_bytes

P = 6_738_415_616


def peak(job: Any, layout: Any) -> tuple[str, dict[str, int]]:
    return max(moments(job, layout).items(), key=lambda item: sum(item[1].values()))


def test_by_hand_for_plain_bf16(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", precision="bf16-pure", accumulation_steps=1)
    layout = planning.layout("none")
    found = {name: sum(parts.values()) for name, parts in moments(job, layout).items()}
    states = 2 * P + 4 * P
    block = recomputed_bytes(job, layout) + working_bytes(job, layout)
    kept = kept_bytes(job, layout)
    assert found["loss"] == states + kept + logits_bytes(job)
    assert found["backward"] == states + kept + block + 2 * 32000 * 4096
    assert found["end"] == states + 2 * P + kept // 32 + block
    assert found["step"] == states + 2 * P
    moment, parts = peak(job, layout)
    assert sum(parts.values()) == max(found.values()) == found[moment]


def test_many_tokens_peak_at_the_loss_few_at_the_step(planning: Any) -> None:
    layout = planning.layout("zero2")
    few = planning.job(model="llama-2-7b", gpus=8, seq_len=128)
    many = planning.job(model="llama-2-7b", gpus=8, seq_len=4096, micro_batch=8)
    assert peak(few, layout)[0] == "step"
    assert peak(many, layout)[0] == "loss"


def test_without_logits_the_backward_pass_peaks(planning: Any) -> None:
    job = planning.job(model="bert-large-uncased", seq_len=512, micro_batch=8, precision="fp32")
    moment, parts = peak(job, planning.layout("none", checkpointing=False))
    assert moment == "backward"
    assert parts["logits"] == 0


def test_an_optimizer_that_copies_peaks_at_its_step(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", seq_len=128, optimizer="adamw_foreach")
    layout = planning.layout("none")
    moment, parts = peak(job, layout)
    assert moment == "step"
    assert parts["gradients"] == 4 * P + step_copies_bytes(job, layout)


def test_a_pipeline_is_sized_at_its_fuller_end(planning: Any) -> None:
    fields = {"model": "llama-3.1-8b", "gpus": 4, "strategy": "none", "pipeline_parallel": 4}
    short = planning.plan(**fields, checkpointing=True, seq_len=512).candidates[0].per_gpu
    assert short.logits_bytes > 0  # the last stage, with its head
    long = planning.plan(**fields, checkpointing=False, seq_len=8192, loss="liger")
    assert long.candidates[0].per_gpu.logits_bytes == 0  # the first, with four micro-batches


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op"])
@pytest.mark.parametrize("peft", [None, "lora", "qlora"])
def test_nothing_is_negative(planning: Any, strategy: str, peft: str | None) -> None:
    job = planning.job(model="smollm2-135m", gpus=8, seq_len=1, peft=peft)
    for parts in moments(job, planning.layout(strategy)).values():
        assert all(size >= 0 for size in parts.values())
