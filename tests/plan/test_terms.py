"""Logits, buffers, framework, host."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.units import MIB
from qdeploy.plan.deepspeed import zero_optimization
from qdeploy.plan.terms.buffers import (
    buffers_in_backward_bytes,
    buffers_in_forward_bytes,
    permanent_buffers_bytes,
)
from qdeploy.plan.terms.framework import device_bytes, fragments_bytes, slack_bytes
from qdeploy.plan.terms.host import host_bytes, host_init_bytes, nvme_bytes
from qdeploy.plan.terms.logits import logits_bytes

GB = 10**9


def test_stock_loss_takes_16_bytes_a_token_and_word(planning: Any) -> None:
    job = planning.job(model="llama-3.1-8b", micro_batch=2, seq_len=1024)
    assert logits_bytes(job) == 16 * 2048 * 128256


def test_buffers_come_from_the_emitted_json(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", gpus=4)
    for stage, factor in (("zero1", 1), ("zero2", 4.5 * 2)):
        layout = planning.layout(stage)
        zero = zero_optimization(job, layout)
        assert zero["stage"] == int(stage[-1])
        assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"]
        assert buffers_in_backward_bytes(job, layout) == factor * 2 * zero["reduce_bucket_size"]
    zero = zero_optimization(job, planning.layout("zero3", "all"))
    assert zero["reduce_bucket_size"] == 4096**2
    assert zero["stage3_prefetch_bucket_size"] == int(0.9 * 4096**2)
    assert zero["stage3_param_persistence_threshold"] == 40960
    assert zero["offload_param"]["device"] == zero["offload_optimizer"]["device"] == "cpu"


def test_zero3_holds_live_weights(planning: Any) -> None:
    job, layout = planning.job(model="llama-2-7b", gpus=4), planning.layout("zero3")
    live = 10**9 + int(0.9 * 4096**2)
    assert buffers_in_backward_bytes(job, layout) == 2 * (4096**2 + live + 2 * 32000 * 4096)
    small = planning.job(model="smollm2-135m", gpus=4)
    assert buffers_in_backward_bytes(small, layout) < 2 * (3 * small.parameters)


def test_published_footprint_of_default_buckets(planning: Any) -> None:
    # transformers docs, deepspeed.md: 5e8 of each bucket take 9 GB with overlap_comm.
    config = {"zero_optimization": {"stage": 2, "overlap_comm": True}}
    job = planning.job(gpus=4, ds_config=config)
    assert buffers_in_backward_bytes(job, planning.layout("zero2")) == 9 * GB


def test_no_buffers_without_sharding(planning: Any) -> None:
    assert buffers_in_backward_bytes(planning.job(), planning.layout("none")) == 0
    assert buffers_in_backward_bytes(planning.job(gpus=2), planning.layout("ddp")) == 0


def test_fsdp_gathers_two_blocks_and_the_root(planning: Any) -> None:
    job, layout = planning.job(model="llama-2-7b", gpus=4), planning.layout("fsdp")
    block = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    root = 2 * 32000 * 4096 + 4096
    gradient = (2 + 4) * max(block, root)
    assert buffers_in_backward_bytes(job, layout) == 2 * (2 * block + root) + gradient
    assert buffers_in_forward_bytes(job, layout) == 2 * (2 * block + root)


def test_qlora_dequantizes_the_largest_linear(planning: Any) -> None:
    job = planning.job(model="llama-2-7b", peft="qlora")
    assert buffers_in_forward_bytes(job, planning.layout("none")) == 2 * 2 * 4096 * 11008


def test_framework_by_basis(planning: Any) -> None:
    one, two = planning.job(), planning.job(gpus=2)
    assert device_bytes(one) == 650 * MIB
    assert device_bytes(two) == (650 + 1024) * MIB
    assert device_bytes(planning.job(context_bytes=0)) == 0
    groups = planning.job(gpus=8, tensor_parallel=2, pipeline_parallel=2)
    assert device_bytes(groups) == (650 + 1024 + 2 * 620) * MIB
    by_basis = {
        basis: planning.only(strategy="none", model="gpt2", basis=basis).per_gpu
        for basis in ("allocated", "reserved", "device")
    }
    assert by_basis["allocated"].framework_bytes == one.traits.workspace_bytes
    added = by_basis["device"].total_bytes - by_basis["reserved"].total_bytes
    assert added == 650 * MIB


def test_slack_ends_where_the_gpu_does(planning: Any) -> None:
    job, layout = planning.job(gpu="RTX-3090"), planning.layout("zero2")
    assert slack_bytes(job, layout, 0, GB) == GB // 5
    assert slack_bytes(job, planning.layout("fsdp1"), 0, GB) == 2 * GB // 5
    full = job.gpu.memory_bytes - device_bytes(job)
    assert slack_bytes(job, layout, full - GB // 10, GB) == GB // 10
    # What lies between blocks in use cannot be given back.
    assert slack_bytes(job, layout, full, GB) == fragments_bytes(GB) == 3 * GB // 100
    shared = planning.job(gpu="RTX-3090", occupied_bytes=GB)
    assert slack_bytes(shared, layout, full - GB - GB // 10, GB) == GB // 10


def test_memory_of_others_is_not_there_to_plan_with(planning: Any) -> None:
    fields = {"model": "smollm2-135m", "gpu": "T4", "strategy": "none"}
    assert planning.only(**fields).fits
    assert not planning.only(**fields, occupied_bytes=14 * GB).fits


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
    buffers = (permanent_buffers_bytes, buffers_in_forward_bytes, buffers_in_backward_bytes)
    for term in (*buffers, host_bytes, host_init_bytes, nvme_bytes):
        assert term(job, layout) >= 0
