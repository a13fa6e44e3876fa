"""Logits, buffers, framework, host."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.units import MIB
from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.terms.buffers import buffers_bytes
from qdeploy.plan.terms.framework import framework_bytes
from qdeploy.plan.terms.host import host_bytes, host_init_bytes, nvme_bytes
from qdeploy.plan.terms.logits import logits_bytes

GB = 10**9


def test_stock_loss_takes_16_bytes_a_token_and_word(planning: Any) -> None:
    job = planning.job(model="llama-3.1-8b", micro_batch=2, seq_len=1024)
    assert logits_bytes(job) == 16 * 2048 * 128256


def test_chunked_loss(planning: Any) -> None:
    job = planning.job(model="llama-3.1-8b", seq_len=1024, loss="chunked")
    assert logits_bytes(job) == 128256 * (4 * 1024 + 12 * 128)
    one = planning.job(model="llama-3.1-8b", seq_len=1, loss="chunked")
    assert logits_bytes(one) == 128256 * (4 + 12)


def test_liger_loss_hardly_grows_with_tokens(planning: Any) -> None:
    def size(seq_len: int, **more: Any) -> int:
        return logits_bytes(
            planning.job(model="llama-3.1-8b", seq_len=seq_len, loss="liger", **more)
        )

    # 32 chunks of 2048 tokens are 64 tokens each: 6 bytes a logit, and two gradients.
    assert size(2048) == 64 * 6 * 128256 + 2 * 4096 * 2048 + 2 * 128256 * 4096
    assert size(2048, peft="lora") == 64 * 6 * 128256 + 2 * 4096 * 2048
    assert size(1, peft="lora") == 6 * 128256 + 2 * 4096


def test_fp32_loss_has_no_upcast(planning: Any) -> None:
    job = planning.job(model="gpt2", seq_len=10, precision="fp32")
    assert logits_bytes(job) == 12 * 10 * 50257


def test_buffers_come_from_the_emitted_json(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", gpus=4)
    for stage, copies in (("zero1", 1), ("zero2", 2)):
        layout = planning.layout(stage)
        zero = zero_optimization(job, layout)
        assert zero["stage"] == int(stage[-1])
        assert buffers_bytes(job, layout) == copies * 2 * zero["reduce_bucket_size"]
    zero = zero_optimization(job, planning.layout("zero3", "all"))
    assert zero["reduce_bucket_size"] == 4096**2
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * 4096**2)
    assert zero["stage3_param_persistence_threshold"] == 40960
    assert zero["offload_param"]["device"] == zero["offload_optimizer"]["device"] == "cpu"


def test_zero3_holds_live_weights(planning: Any) -> None:
    job, layout = planning.job(model="llama-2-7b", gpus=4), planning.layout("zero3")
    live = 10**9 + int(0.9 * 4096**2)
    assert buffers_bytes(job, layout) == 2 * (4096**2 + live + 32000 * 4096)
    small = planning.job(model="smollm2-135m", gpus=4)
    assert buffers_bytes(small, layout) < 2 * (2 * small.parameters)


def test_no_buffers_without_sharding(planning: Any) -> None:
    assert buffers_bytes(planning.job(), planning.layout("none")) == 0
    assert buffers_bytes(planning.job(gpus=2), planning.layout("ddp")) == 0


def test_fsdp_gathers_two_blocks_and_the_root(planning: Any) -> None:
    job, layout = planning.job(model="llama-2-7b", gpus=4), planning.layout("fsdp")
    block = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    root = 2 * 32000 * 4096 + 4096
    assert buffers_bytes(job, layout) == 2 * (2 * block + root) + 4 * max(block, root)


def test_qlora_dequantizes_the_largest_linear(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", peft="qlora")
    assert buffers_bytes(job, planning.layout("none")) == 2 * 2 * 4096 * 11008


def test_framework_by_basis(planning: Any) -> None:
    one, two = planning.job(), planning.job(gpus=2)
    assert framework_bytes(one, GB, "allocated") == 32 * MIB
    assert framework_bytes(one, GB, "reserved") == 32 * MIB + GB // 5
    assert framework_bytes(one, 0, "device") == (32 + 650) * MIB
    assert framework_bytes(two, 0, "device") == (32 + 650 + 1024) * MIB


def test_host_of_offload(planning: Any) -> None:
    job = planning.job(gpus=4)
    assert host_bytes(job, planning.layout("zero3")) == 0
    assert host_bytes(job, planning.layout("zero2", "optimizer")) == 16 * 7 * GB * 3 // 2
    assert host_bytes(job, planning.layout("zero3", "all")) == 18 * 7 * GB * 3 // 2
    nodes = planning.job(gpus=4, nodes=2)
    assert host_bytes(nodes, planning.layout("zero2", "optimizer")) == 8 * 7 * GB * 3 // 2


def test_host_at_the_start(planning: Any) -> None:
    for gpus in (1, 2, 8):
        job = planning.job(gpus=gpus)
        assert host_init_bytes(job, planning.layout("zero2")) == 4 * 7 * GB * gpus
        assert host_init_bytes(job, planning.layout("zero3")) < 7 * GB


def test_nvme(planning: Any) -> None:
    job, layout = planning.job(gpus=8), planning.layout("zero3", "nvme")
    assert nvme_bytes(job, layout) == 18 * 7 * GB
    sub_group = 7 * GB // 8
    assert host_bytes(job, layout) == 8 * (4 * 4 * sub_group + 5 * 10**8 * 2)
    assert nvme_bytes(job, planning.layout("zero3", "all")) == 0


@pytest.mark.parametrize("offload", ["none", "optimizer", "all", "nvme"])
def test_terms_are_never_negative(planning: Any, offload: str) -> None:
    job = planning.job(model="smollm2-135m", gpus=8, seq_len=1)
    layout = planning.layout("zero3", offload)
    for term in (buffers_bytes, host_bytes, host_init_bytes, nvme_bytes):
        assert term(job, layout) >= 0
