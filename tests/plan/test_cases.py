"""What other planners were publicly wrong about, each with the right value."""

from __future__ import annotations

from typing import Any

import pytest

from qdeploy.core.units import GIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan import deepspeed
from qdeploy.plan.moments import moments
from qdeploy.plan.terms.buffers import buffers_in_backward_bytes
from qdeploy.plan.terms.gradients import gradients_in_backward_bytes, step_copy_bytes
from qdeploy.plan.terms.master_weights import master_weights_bytes
from qdeploy.plan.terms.optimizer import optimizer_bytes
from qdeploy.plan.terms.weights import weights_bytes

GB = 10**9


def test_zero3_offload_is_not_one_layer(planning: Any) -> None:
    # deepspeed#4527: 6.8B on 4 GPUs, both offloaded; the estimator printed 0.49 GB.
    one = planning.only(model="6.805B", gpus=4, strategy="zero3", offload="all", micro_batch=8)
    assert one.per_gpu.buffers_bytes > 2 * GB
    assert one.per_gpu.logits_bytes > 8 * GB
    assert one.per_gpu.framework_bytes > GB
    assert one.per_gpu.total_bytes > 15 * GIB


def test_zero2_of_t5_3b(planning: Any) -> None:
    # deepspeed PR 5099: 2P + 18P/N, not 4P + 16P/N.
    job, layout = planning.job(model="2.851B", gpus=8), planning.layout("zero2")
    terms = (
        weights_bytes, master_weights_bytes, optimizer_bytes, gradients_in_backward_bytes,
        step_copy_bytes,
    )  # fmt: skip
    assert sum(term(job, layout) for term in terms) / GIB == pytest.approx(11.28, abs=0.01)


def test_host_memory_of_33b(planning: Any) -> None:
    # deepspeed#3448: 600 GB did not suffice, 750 to 800 GB did.
    fields = {"model": "32.5B", "gpu": "A100-40GB", "gpus": 8, "strategy": "zero3"}
    one = planning.only(**fields, offload="all", host_memory_bytes=600 * GB)
    assert 585 * GB < one.host_bytes < 900 * GB
    assert not one.fits
    assert "host needs" in one.reason


def test_host_memory_of_7b(planning: Any) -> None:
    # deepspeed#3606: 94 GB were killed; 160 to 178 GB measured later.
    fields = {"model": "6.7B", "gpu": "A100-40GB", "strategy": "zero3", "offload": "all"}
    assert planning.only(**fields).host_bytes == pytest.approx(181 * GB, rel=0.01)
    assert not planning.only(**fields, host_memory_bytes=94 * GB).fits
    assert planning.only(**fields, host_memory_bytes=256 * GB).fits


def test_eager_attention_counts(planning: Any) -> None:
    # deepspeed#2899: the softmax of eager attention was left out.
    def size(attention: str, seq_len: int) -> int:
        one = planning.only(
            model="llama-2-7b", strategy="none", checkpointing=False, attention=attention,
            seq_len=seq_len,
        )  # fmt: skip
        return one.per_gpu.activations_bytes

    assert size("eager", 2048) - size("flash", 2048) > 32 * 6 * 32 * 2048 * 2048 - GB
    assert size("flash", 4096) == 2 * size("flash", 2048)
    assert size("eager", 4096) > 3 * size("eager", 2048)


def test_small_models_need_small_buckets(planning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # deepspeed#1302: BERT-large took more with ZeRO-2 than with ZeRO-1.
    job = planning.job(model="340M", gpus=4)

    def total(stage: str) -> int:
        layout = planning.layout(stage)
        return gradients_in_backward_bytes(job, layout) + buffers_in_backward_bytes(job, layout)

    assert total("zero2") < total("zero1")
    monkeypatch.setattr(deepspeed, "_BUCKET_ELEMENTS", 500_000_000)
    monkeypatch.setattr(deepspeed, "_BUCKET_SHARE", 1)
    assert total("zero2") > total("zero1")
    assert planning.plan(model="340M", gpus=4).chosen.strategy == "ddp"


def test_basis_is_stated(planning: Any) -> None:
    # deepspeed#2864: allocated and reserved were confused.
    sizes = []
    for basis in ("allocated", "reserved", "device"):
        result = planning.plan(gpus=2, basis=basis)
        assert f"basis {basis}" in result.notes[1]
        sizes.append(result.candidates[0].per_gpu.total_bytes)
    assert sizes == sorted(set(sizes))


def test_host_grows_with_processes(planning: Any) -> None:
    # deepspeed#5290: each process loads the whole model.
    def start(gpus: int) -> int:
        return planning.only(model="llama-2-70b", gpus=gpus, strategy="zero2").host_init_bytes

    assert start(4) == 2 * start(2)


def test_two_v100_do_not_train_7b(planning: Any) -> None:
    # LLaMA-Factory#2931: 2 x 32 GB fail, 4 x 32 GB are tight; no BF16 there.
    fields = {"model": "llama-7b", "gpu": "V100-32GB", "strategy": "zero3", "seq_len": 1024}
    two, four = planning.plan(**fields, gpus=2, offload="none"), planning.only(**fields, gpus=4)
    assert two.precision.dtype == "fp16"
    assert two.chosen is None
    assert two.suggestion is not None
    assert four.per_gpu.low_bytes < planning.job(**fields).gpu.memory_bytes


def test_8b_on_eight_3090(planning: Any) -> None:
    # LLaMA-Factory#5977: out of memory with ZeRO-3, 13 GB with offload.
    fields = {"model": "llama-3-8b", "gpu": "RTX-3090", "gpus": 8, "seq_len": 1024,
              "strategy": "zero3", "precision": "fp16"}  # fmt: skip
    plain = planning.only(**fields)
    assert not plain.fits
    job = planning.job(**{**fields, "strategy": None})
    assert moments(job, planning.layout("zero3"))["loss"]["logits"] > 1.7 * GIB
    assert planning.only(**fields, offload="optimizer").fits


def test_32b_on_seven_a800(planning: Any) -> None:
    # LLaMA-Factory#6999: 18P/7 = 78.5 GiB of states.
    fields = {"model": "qwen2.5-32b", "gpu": "A800-80GB", "gpus": 7, "strategy": "zero3"}
    assert not planning.only(**fields).fits


def test_peak_follows_tokens_of_the_micro_batch(planning: Any) -> None:
    # axolotl#849: published peaks were for short texts.
    short = planning.only(model="llama-2-7b", strategy="none", peft="qlora", seq_len=512)
    packed = planning.only(model="llama-2-7b", strategy="none", peft="qlora", seq_len=8192)
    assert packed.per_gpu.total_bytes - short.per_gpu.total_bytes > 16 * 7680 * 32000


def test_logits_of_a_large_vocabulary(planning: Any) -> None:
    # trl#1980, transformers#30860: logits.float() of 256k words.
    gemma = ModelShape(
        name="gemma-2-2b", family="gemma3_text", layers=26, hidden_size=2304, heads=8, kv_heads=4,
        head_dim=256, intermediate_size=9216, vocab_size=256000, max_positions=8192,
        tied_embeddings=True, norms_per_block=4,
    )  # fmt: skip
    stock = planning.only(model=gemma, strategy="none", micro_batch=4)
    assert stock.per_gpu.logits_bytes == 16 * 4 * 2048 * 256000
    fused = planning.only(model=gemma, strategy="none", micro_batch=4, loss="liger")
    assert fused.per_gpu.logits_bytes < stock.per_gpu.logits_bytes // 10


def test_states_of_32b_on_eight_h100(planning: Any) -> None:
    # axolotl#2531: 18P/8 = 68.6 GiB of states; there is no key-value cache in training.
    job, layout = (
        planning.job(model="qwen2.5-32b", gpus=8, gpu="H100-80GB"),
        planning.layout("zero3"),
    )
    terms = (weights_bytes, master_weights_bytes, optimizer_bytes, gradients_in_backward_bytes)
    states = sum(term(job, layout) for term in terms)
    assert states + 2 * job.parameters / 8 == pytest.approx(18 * job.parameters / 8, rel=0.001)
    assert (states + 2 * job.parameters / 8) / GIB == pytest.approx(68.6, abs=0.2)
    offloaded = planning.only(
        model="qwen2.5-32b", gpus=8, gpu="H100-80GB", strategy="zero3", offload="all", seq_len=4096
    )
    assert offloaded.fits
    assert offloaded.host_bytes == pytest.approx(18 * job.parameters * 1.5, rel=0.001)


def test_70b_lora_on_eight_4090_is_more_than_its_shards(planning: Any) -> None:
    # torchtune#2071: 17.6 GiB after loading were taken for the need.
    fields = {"model": "llama-3.1-70b", "gpu": "RTX-4090", "gpus": 8, "peft": "lora",
              "precision": "bf16-pure", "trainer": "torchtune", "strategy": "fsdp",
              "seq_len": 2048, "micro_batch": 2}  # fmt: skip
    one = planning.only(**fields)
    assert one.per_gpu.weights_bytes / GIB == pytest.approx(17.6 / 1.07, rel=0.05)
    assert one.per_gpu.total_bytes - one.per_gpu.weights_bytes > 4 * GIB
    assert not one.fits


def test_70b_offloaded_fills_the_host(planning: Any) -> None:
    # torchtune#1871: 14 GB of GPU memory, but 500 GB of host memory did not suffice.
    fields = {"model": "llama-3.1-70b", "gpu": "A100-80GB", "gpus": 8, "strategy": "fsdp",
              "offload": "all", "precision": "bf16-pure", "trainer": "torchtune",
              "seq_len": 512}  # fmt: skip
    one = planning.only(**fields, host_memory_bytes=500 * GB)
    assert 560 * GB < one.host_bytes < 1100 * GB
    assert not one.fits
    assert "host needs" in one.reason


def test_13b_lora_in_one_flat_parameter(planning: Any) -> None:
    # llama-cookbook#37: 6 GB after the forward pass, more than 18 GB in the backward pass.
    fields = {"model": "llama-2-13b", "gpu": "RTX-3090", "gpus": 8, "peft": "lora",
              "precision": "bf16-pure", "strategy": "fsdp1", "seq_len": 512,
              "accumulation_steps": 1}  # fmt: skip
    mixed, apart = (planning.job(**fields, trainer=name) for name in ("litgpt", "fsdp-qlora"))
    layout = planning.layout("fsdp1")
    end = sum(moments(mixed, layout)["end"].values())
    loss = sum(moments(mixed, layout)["loss"].values())
    assert loss < 8 * GB
    assert end > 18 * GB
    assert sum(moments(apart, layout)["end"].values()) < 8 * GB


def test_batch_and_sequence_count(planning: Any) -> None:
    # accelerate#2512: a calculator whose batch size nobody knows. vram-calculator#1: flash
    # attention grows with the sequence, not with its square, and not as n log n.
    def activations(micro_batch: int, seq_len: int) -> int:
        job = planning.job(
            model="llama-2-7b",
            micro_batch=micro_batch,
            seq_len=seq_len,
            attention="flash",
            packing=True,
        )
        layout = planning.layout("zero2", checkpointing=False)
        return moments(job, layout)["loss"]["activations"]

    one = activations(1, 1024)
    assert activations(1, 2048) == activations(2, 1024) == 2 * one
    assert activations(1, 8192) == 8 * one


def test_ddp_shards_nothing(planning: Any) -> None:
    # axolotl#1641: eight cards hold eight times the states of one.
    one = planning.job(model="llama-3-8b", gpu="A6000", gpus=8)
    assert optimizer_bytes(one, planning.layout("ddp")) == 8 * one.parameters
    assert optimizer_bytes(one, planning.layout("zero1")) == one.parameters
