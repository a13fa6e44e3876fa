from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qdeploy.calib.batches import CalibBatch, CalibrationSet
from qdeploy.core.artifacts import read_artifact
from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB, MIB
from qdeploy.formats import compressed_tensors
from qdeploy.models.shape import ModelShape
from qdeploy.models.shipped_shapes import shipped_shape
from qdeploy.plan import PlanRequest, plan
from qdeploy.plan.gpu import find_gpu
from qdeploy.plan.ledger import Ledger, Need, ServingTarget, Stage, ledger, ledger_table
from qdeploy.plan.ledger.evaluating import moments, running_int8_bytes
from qdeploy.plan.ledger.machine import Machine
from qdeploy.plan.ledger.quantizing import quantizing
from qdeploy.plan.ledger.schema import Place, needed
from qdeploy.plan.ledger.verdict import tightest, verdict, works
from qdeploy.quant.engine import SAMPLE_TOKENS
from qdeploy.quant.estimate import estimate
from qdeploy.runtime.model import DEFAULT_BATCH_TOKENS

LLAMA_7B = 6_738_415_616
LINEARS_7B = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
CHANNELS_7B = 32 * (4 * 4096 + 2 * 11008 + 4096)


def shape(name: str) -> ModelShape:
    known = shipped_shape(name)
    assert known is not None
    return known.shape


def machine(model: ModelShape, gpu: str = "A100-80GB") -> Machine:
    return Machine(model, model.parameters, find_gpu(gpu)[0], 1, None, None)


def stage(found: Ledger, name: str) -> Stage:
    return next(stage for stage in found.stages if stage.name == name)


def full(**fields: Any) -> Ledger:
    """A 7B on two A100 with everything given."""
    request = PlanRequest(
        **{
            "model": "llama-2-7b",
            "gpu": "A100-80GB",
            "gpus": 2,
            "strategy": "zero3",
            "offload": "none",
            "checkpointing": True,
            "host_memory_bytes": 256 * GIB,
            **fields,
        }
    )
    return ledger(request, ServingTarget(concurrency=16, context=4096), disk_bytes=500 * GIB)


def test_llama_2_7b_on_two_a100_by_hand() -> None:
    found = full()
    assert [s.name for s in found.stages] == [
        "train", "quantize", "evaluate", "serve bf16", "serve int8",
    ]  # fmt: skip
    train = stage(found, "train").needs
    # 16-bit source and result; of each of three checkpoints 2 + 4 + 8 and 2 bytes a parameter.
    assert train["disk"].total_bytes == (2 + 2 + 3 * 16) * LLAMA_7B + 64 * MIB

    quantized = LINEARS_7B + 2 * CHANNELS_7B + 2 * (LLAMA_7B - LINEARS_7B)
    files = stage(found, "quantize").needs["disk"].total_bytes
    assert files == 2 * LLAMA_7B + quantized + 64 * MIB

    bf16 = stage(found, "serve bf16").needs["GPU"]
    cache = 16 * 4096 * 32 * 2 * 32 * 128 * 2
    # The residual stream twice, and the widest of the block; 16 requests sample less.
    block = 2 * 2048 * (2 * 4096 + 3 * 11008)
    assert bf16.parts["activations"] == block
    assert bf16.parts["weights"] == 2 * LLAMA_7B
    assert bf16.parts["kv_cache"] == cache
    assert bf16.parts["engine"] == (650 + 512) * MIB
    assert bf16.total_bytes == 2 * LLAMA_7B + cache + block + (650 + 512) * MIB
    assert bf16.capacity_bytes == find_gpu("A100-80GB")[0].memory_bytes * 90 // 100
    int8 = stage(found, "serve int8").needs["GPU"]
    assert bf16.total_bytes - int8.total_bytes == 2 * LLAMA_7B - quantized
    assert found.works
    assert found.fits


def test_evaluation_of_a_7b_by_hand() -> None:
    found = moments(machine(shape("llama-2-7b")))
    assert DEFAULT_BATCH_TOKENS == 16384
    assert found["answers"] == {
        "baseline": 4 * LLAMA_7B,
        "kv cache": 16384 * 32 * 2 * 4096 * 4 * 3 // 2,
        "activations": 4 * 16384 * (2 * 4096 + 3 * 11008),
    }
    assert found["screen"] == {
        "baseline": 4 * LLAMA_7B,
        "INT8 model": LINEARS_7B + 4 * CHANNELS_7B + 4 * (LLAMA_7B - LINEARS_7B),
        "activations": 4 * 1024 * (2 * 4096 + 3 * 11008),
        "logits": 2 * 2 * 4 * 1024 * 32000,
    }


def test_the_training_row_is_the_plan() -> None:
    request = PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2)
    chosen = plan(request).chosen
    assert chosen is not None
    need = stage(ledger(request), "train").needs["GPU"]
    assert need.total_bytes == chosen.per_gpu.total_bytes == sum(need.parts.values())
    assert need.low_bytes == chosen.per_gpu.low_bytes
    assert need.high_bytes == chosen.per_gpu.high_bytes
    assert need.need_bytes == chosen.per_gpu.need_bytes
    assert need.fits == chosen.fits


def test_the_training_row_is_judged_on_the_whole_device_whatever_the_basis() -> None:
    one, other = full(basis="allocated"), full()
    assert stage(one, "train").needs["GPU"] == stage(other, "train").needs["GPU"]


@pytest.mark.parametrize(
    ("fields", "each"),
    [
        ({"strategy": "zero1"}, 16),
        ({"strategy": "ddp"}, 4 + 8),
        ({"strategy": "fsdp"}, 4 + 8),
        ({"strategy": "ddp", "precision": "bf16-pure"}, 2 + 4),
        ({"strategy": "zero2", "optimizer": "sgd"}, 2 + 4 + 2),
    ],
)
def test_checkpoints_hold_weights_masters_and_states(fields: dict[str, Any], each: int) -> None:
    disk = stage(full(**fields), "train").needs["disk"]
    assert disk.parts["checkpoints"] == 3 * each * LLAMA_7B


def test_checkpoints_of_adapters_are_small_and_the_result_is_whole() -> None:
    disk = stage(full(strategy="zero2", peft="lora", lora_rank=16), "train").needs["disk"]
    adapters = 32 * 16 * (4 * 2 * 4096 + 3 * (4096 + 11008))
    assert disk.parts["checkpoints"] == 3 * 16 * adapters
    assert disk.parts["result"] == 2 * LLAMA_7B


def test_fewer_checkpoints() -> None:
    request = PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2, strategy="zero3")
    none = ledger(request, kept_checkpoints=0)
    assert "checkpoints" not in stage(none, "train").needs["disk"].parts
    one = ledger(request, kept_checkpoints=1)
    assert stage(one, "train").needs["disk"].parts["checkpoints"] == 2 * 16 * LLAMA_7B


def test_host_of_training_is_start_or_steady_state_and_the_processes() -> None:
    host = stage(full(strategy="ddp"), "train").needs["host"]
    assert host.parts == {"loading": 2 * 4 * LLAMA_7B, "processes": 2 * GIB}
    host = stage(full(offload="optimizer"), "train").needs["host"]
    chosen = plan(
        PlanRequest(
            model="llama-2-7b", gpu="A100-80GB", gpus=2, strategy="zero3", offload="optimizer"
        )
    ).candidates[0]
    assert host.total_bytes == max(chosen.host_bytes, chosen.host_init_bytes) + 2 * GIB


@pytest.mark.parametrize("name", ["llama-2-7b", "gemma-3-1b", "qwen2.5-0.5b", "mistral-7b"])
@pytest.mark.parametrize("tokens", [64, 512])
def test_quantizing_is_the_engines_own_estimate(name: str, tokens: int) -> None:
    model = shape(name).model_copy(update={"max_positions": tokens})
    prefix, tensors = "model.layers", {}
    linears = [*model.attention_linears, *model.mlp_linears]
    names = [f"{prefix}.{i}.{linear.name}" for i in range(model.layers) for linear in linears]
    for full_name, linear in zip(names, linears * model.layers, strict=True):
        size = (linear.out_features, linear.in_features)
        tensors[f"{full_name}.weight"] = SimpleNamespace(
            shape=size, dtype="BF16", size_bytes=2 * size[0] * size[1]
        )
    job: Any = SimpleNamespace(
        shape=model,
        checkpoint=SimpleNamespace(size_bytes=2 * model.parameters, tensors=tensors),
        all_linears=lambda: names,
        format=compressed_tensors,
        scheme=SimpleNamespace(weights=SimpleNamespace(group_size=None)),
    )
    ids = torch.zeros(8, tokens, dtype=torch.long)
    batches = [CalibBatch(ids, ids)] * 8
    calibration = CalibrationSet(batches, 64, 64 * tokens, "", {}, 0, tokens, 0)
    own = estimate(job, calibration, SAMPLE_TOKENS)
    needs = quantizing(machine(model)).needs
    assert needs["host"].total_bytes == own.memory_bytes
    assert needs["disk"].total_bytes == own.disk_bytes + 2 * model.parameters
    assert needs["GPU"].total_bytes < own.memory_bytes + 650 * MIB


def test_a_mixture_keeps_its_experts_in_16_bits() -> None:
    found = ledger(PlanRequest(model="mixtral-8x7b", gpu="A100-80GB", gpus=8))
    experts = 32 * 8 * 3 * 4096 * 14336
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    scales = 32 * (4096 + 1024 + 1024 + 4096)
    total = shape("mixtral-8x7b").parameters
    files = stage(found, "serve int8").needs["disk"].parts["result"]
    assert files == 2 * total - attention + 2 * scales
    assert files > 2 * experts
    running = attention + 4 * scales + 4 * (total - attention)
    assert running_int8_bytes(machine(shape("mixtral-8x7b"))) == running
    assert any("experts in 16 bits" in warning for warning in found.warnings)
    wished = ServingTarget(quantized_experts=True)
    less = ledger(PlanRequest(model="mixtral-8x7b", gpu="A100-80GB", gpus=8), wished)
    assert stage(less, "serve int8").needs["disk"].parts["result"] < total + total // 10
    assert not any("experts" in warning for warning in less.warnings)


def test_a_windowed_model_needs_no_more_cache_beyond_its_window() -> None:
    request = PlanRequest(model="mistral-7b", gpu="A100-80GB")
    caches = [
        stage(ledger(request, ServingTarget(context=context)), "serve bf16").needs["GPU"]
        for context in (8192, 32768)
    ]
    assert caches[0].parts["kv_cache"] == caches[1].parts["kv_cache"]
    assert caches[0].parts["kv_cache"] == 16 * 32 * (4096 + 16) * 2 * 8 * 128 * 2


def test_one_layer_and_one_of_everything() -> None:
    model = ModelShape(
        name="one", family="llama", layers=1, hidden_size=8, heads=1, kv_heads=1, head_dim=8,
        intermediate_size=3, vocab_size=11, max_positions=5,
    )  # fmt: skip
    parameters = 2 * 11 * 8 + 4 * 64 + 3 * 24 + 3 * 8
    assert model.parameters == parameters
    request = PlanRequest(model=model, gpu="T4", seq_len=1, micro_batch=1)
    found = ledger(request, ServingTarget(concurrency=1, context=1), disk_bytes=GIB)
    gpu = stage(found, "serve int8").needs["GPU"]
    linears, channels = 4 * 64 + 3 * 24, 4 * 8 + 2 * 3 + 8
    assert gpu.parts["weights"] == linears + 2 * channels + 2 * (parameters - linears)
    assert gpu.parts["kv_cache"] == 16 * 2 * 8 * 2
    assert gpu.parts["activations"] == 2 * 2 * 8 + 30 * 11
    assert found.works is None


def test_what_is_not_given_is_not_judged() -> None:
    found = ledger(PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2))
    assert found.works is None
    assert found.fits
    assert {need.fits for s in found.stages for p, need in s.needs.items() if p != "GPU"} == {None}
    assert "host memory and disk not judged, give --host-memory and --disk" in found.verdict
    assert found.tightest is not None
    assert found.tightest.place == "GPU"


def test_too_little_of_each_is_said() -> None:
    assert "of host memory, there are 8.0 GiB" in full(host_memory_bytes=8 * GIB).verdict
    request = PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2)
    small = ledger(request, disk_bytes=100 * GIB)
    assert small.works is False
    assert not small.fits
    assert "train needs 326" in small.verdict
    assert "quantize" not in small.verdict
    assert small.tightest is not None
    assert (small.tightest.stage, small.tightest.place) == ("train", "disk")
    assert small.tightest.room < 0
    huge = ledger(PlanRequest(model="llama-3.1-405b", gpu="T4", strategy="none"))
    assert "train needs" in huge.verdict


def test_a_model_too_large_for_a_gpu_is_compared_on_the_cpu() -> None:
    found = ledger(
        PlanRequest(model="llama-3.1-70b", gpu="H100-80GB", gpus=8, host_memory_bytes=2000 * GIB)
    )
    evaluate = stage(found, "evaluate")
    assert "GPU" not in evaluate.needs
    assert "on the CPU" in evaluate.how
    parameters = shape("llama-3.1-70b").parameters
    assert evaluate.needs["host"].parts["baseline"] == 4 * parameters
    assert evaluate.needs["host"].total_bytes > 5 * parameters


def test_another_gpu_serves() -> None:
    request = PlanRequest(model="llama-2-7b", gpu="A100-80GB", gpus=2)
    found = ledger(request, ServingTarget(gpu="L4", count=2, concurrency=1))
    need = stage(found, "serve bf16").needs["GPU"]
    assert need.capacity_bytes == find_gpu("L4")[0].memory_bytes * 90 // 100
    assert "x L4" in stage(found, "serve bf16").how
    assert stage(found, "train").needs["GPU"].capacity_bytes == (
        find_gpu("A100-80GB")[0].memory_bytes
    )


def test_memory_that_others_hold_is_not_there() -> None:
    free = stage(full(), "quantize").needs["GPU"].capacity_bytes
    held = stage(full(occupied_bytes=10 * GIB), "quantize").needs["GPU"].capacity_bytes
    assert free is not None and held is not None
    assert free - held == 10 * GIB


def test_conv1d_models_cannot_be_quantized() -> None:
    found = ledger(
        PlanRequest(model="gpt2", gpu="T4", seq_len=512, host_memory_bytes=64 * GIB),
        disk_bytes=100 * GIB,
    )
    assert found.works is False
    assert "Conv1D" in found.verdict


def test_longer_than_the_positions_is_a_warning() -> None:
    found = ledger(PlanRequest(model="llama-2-7b", gpu="A100-80GB"), ServingTarget(context=9999))
    assert any("9999" in warning and "4096 positions" in warning for warning in found.warnings)


def stages(*rooms: tuple[str, int, int | None]) -> list[Stage]:
    """(name, need, capacity) in the host."""
    return [
        Stage(
            name=name, how="", needs={"host": needed({"x": need}, {"x": (0, 0)}, capacity)}
        )
        for name, need, capacity in rooms
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rooms", "expected", "least"),
    [
        ([("train", 5, 10), ("serve bf16", 10, 10)], True, "serve bf16"),
        ([("train", 11, 10), ("serve bf16", 1, 10)], False, "train"),
        ([("train", 5, 10), ("serve bf16", 11, 10), ("serve int8", 4, 10)], True, "train"),
        ([("train", 5, 10), ("serve bf16", 11, 10), ("serve int8", 12, 10)], False, "serve int8"),
        ([("train", 5, None), ("serve bf16", 1, 10)], None, "serve bf16"),
        ([("train", 5, 10), ("serve bf16", 11, 10), ("serve int8", 1, None)], None, "train"),
        ([("train", 0, 0), ("serve bf16", 1, 10)], True, "train"),
    ],
)
def test_verdicts(rooms: Any, expected: bool | None, least: str) -> None:
    found = stages(*rooms)
    assert works(found) is expected
    tight = tightest(found)
    assert tight is not None
    assert tight.stage == least
    words = {True: "works here", False: "does not work here", None: "nothing is too large"}
    assert words[expected] in verdict(found)


def test_a_form_that_does_not_fit_is_named_where_another_one_does() -> None:
    found = stages(("train", 5, 10), ("serve bf16", 11, 10), ("serve int8", 4, 10))
    assert "without serve bf16, which does not fit" in verdict(found)


def test_intervals() -> None:
    need = needed({"a": 100, "b": 10, "c": 0}, {"a": (10, 20), "b": (100, 0), "c": (50, 50)}, 130)
    assert need == Need(
        parts={"a": 100, "b": 10},
        low_bytes=90,
        total_bytes=110,
        high_bytes=130,
        need_bytes=130,
        capacity_bytes=130,
    )
    assert need.fits
    assert need.room == 0


def test_every_number_is_whole_ordered_and_adds_up() -> None:
    places: tuple[Place, ...] = ("GPU", "host", "disk")
    for name in ("llama-2-7b", "mixtral-8x7b", "gemma-3-1b", "7B", "deepseek-v2-lite"):
        found = ledger(PlanRequest(model=name, gpu="H100-80GB", gpus=8))
        for row in found.stages:
            assert set(row.needs) <= set(places)
            for need in row.needs.values():
                assert sum(need.parts.values()) == need.total_bytes
                assert 0 < need.low_bytes <= need.total_bytes <= need.high_bytes


def test_json_and_table(tmp_path: Path) -> None:
    found = full()
    found.write(tmp_path / "ledger.json")
    assert read_artifact(tmp_path / "ledger.json", Ledger) == found
    from rich.console import Console

    with (tmp_path / "out").open("w") as file:
        console = Console(width=100, record=True, no_color=True, file=file)
        console.print(ledger_table(found))
        console.print(ledger_table(ledger(PlanRequest(model="llama-2-7b", gpu="T4"))))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "fits" in text
    assert "too large" in text
    assert "not judged" in text
    assert f"{2 * LLAMA_7B / GIB:.1f}"[:2] in text


@pytest.mark.parametrize("fields", [{"disk_bytes": 0}, {"kept_checkpoints": -1}])
def test_nonsense_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InputError):
        ledger(PlanRequest(model="llama-2-7b", gpu="A100-80GB"), **fields)


def test_encoders_are_refused() -> None:
    with pytest.raises(InputError, match="does not generate text"):
        ledger(PlanRequest(model="bert-base-uncased", gpu="T4", seq_len=128))
