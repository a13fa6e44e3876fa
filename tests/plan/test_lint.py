"""Findings on DeepSpeed configurations, each byte against arithmetic written out here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.toml import read_toml
from qdeploy.models.shape import ModelShape
from qdeploy.plan.deepspeed import ds_config
from qdeploy.plan.lint import Finding, lint, read_ds_config, request_with
from qdeploy.plan.lint.rules.live_parameters import persistent_parameters

P = 7_000_000_000
Z = "zero_optimization"


def find(planning: Any, config: dict[str, Any], key: str, **request: Any) -> list[Finding]:
    found = lint(config, planning.request(**{"gpus": 4, **request}))
    return [finding for finding in found if finding.key == key]


def one(planning: Any, config: dict[str, Any], key: str, **request: Any) -> Finding:
    found = find(planning, config, key, **request)
    assert len(found) == 1, found
    return found[0]


BF16: dict[str, Any] = {"bf16": {"enabled": True}, "gradient_clipping": 1.0}


def zero(stage: int, **settings: Any) -> dict[str, Any]:
    return {**BF16, Z: {"stage": stage, **settings}}


@pytest.mark.parametrize(
    ("strategy", "offload"),
    [("zero1", "none"), ("zero2", "none"), ("zero2", "optimizer"), ("zero3", "none"),
     ("zero3", "all"), ("zero3", "nvme")],
)  # fmt: skip
def test_our_own_configuration_is_clean(planning: Any, strategy: str, offload: str) -> None:
    config = ds_config(planning.job(gpus=4), planning.layout(strategy, offload))
    found = lint(config, planning.request(gpus=4))
    assert [f for f in found if f.severity != "note"] == []


CASES: list[tuple[str, dict[str, Any], str, str, dict[str, Any]]] = [
    ("one GPU", zero(2), f"{Z}.stage", "warning", {"gpus": 1}),
    ("no stage", BF16, f"{Z}.stage", "note", {}),
    ("both", {**zero(1), "fp16": {"enabled": True}}, "fp16.enabled", "error", {}),
    ("old GPU", zero(1), "bf16.enabled", "error", {"gpu": "V100-32GB", "precision": "fp16"}),
    ("needless fp16", {Z: {"stage": 1}, "fp16": {"enabled": True}}, "fp16.enabled", "note", {}),
    ("neither", {Z: {"stage": 1}}, "bf16.enabled", "warning", {}),
    ("fixed scale", {Z: {"stage": 1}, "fp16": {"enabled": True, "loss_scale": 128}},
     "fp16.loss_scale", "warning", {"gpu": "V100-32GB"}),
    ("autocast too", {**zero(1), "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
     "torch_autocast.enabled", "warning", {}),
    ("autocast and quantized", {**zero(3, zero_quantized_weights=True),
     "torch_autocast": {"enabled": True}}, f"{Z}.zero_quantized_weights", "error", {}),
    ("8-bit offloaded", zero(2, offload_optimizer={"device": "cpu"}), f"{Z}.offload_optimizer",
     "error", {"optimizer": "adamw8bit"}),
    ("offload without a stage", zero(0, offload_optimizer={"device": "cpu"}),
     f"{Z}.offload_optimizer", "error", {}),
    ("weights without stage 3", zero(2, offload_param={"device": "cpu"}), f"{Z}.offload_param",
     "error", {}),
    ("old key", zero(2, cpu_offload_param=True), f"{Z}.offload_param", "error", {}),
    ("no path", zero(3, offload_param={"device": "nvme"}), f"{Z}.offload_param.nvme_path", "error",
     {}),
    ("NVMe in stage 2", zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/n"}),
     f"{Z}.offload_optimizer.device", "warning", {}),
    ("aio", zero(3, offload_param={"device": "nvme", "nvme_path": "/n"}), "aio", "note", {}),
    ("stage 3 keys", zero(2, stage3_max_live_parameters=1), f"{Z}.stage3_max_live_parameters",
     "note", {}),
    ("sub-groups in stage 1", zero(1, sub_group_size=1), f"{Z}.sub_group_size", "note", {}),
    ("stage 2 keys", zero(3, allgather_bucket_size=1), f"{Z}.allgather_bucket_size", "note", {}),
    ("round robin", zero(2, round_robin_gradients=True), f"{Z}.round_robin_gradients", "note", {}),
    ("cpu checkpointing", {**zero(1), "activation_checkpointing": {"cpu_checkpointing": True}},
     "activation_checkpointing.cpu_checkpointing", "warning", {}),
    ("batch", {**zero(1), "train_batch_size": 63, "train_micro_batch_size_per_gpu": 2,
     "gradient_accumulation_steps": 8}, "train_batch_size", "error", {"micro_batch": 2}),
    ("micro-batch", {**zero(1), "train_micro_batch_size_per_gpu": 4},
     "train_micro_batch_size_per_gpu", "warning", {}),
    ("broken batch", {**zero(1), "train_batch_size": "64"}, "train_batch_size", "error", {}),
    ("no clipping", {"bf16": {"enabled": True}, Z: {"stage": 1}}, "gradient_clipping", "warning",
     {}),
    ("shards saved", zero(3), f"{Z}.stage3_gather_16bit_weights_on_model_save", "warning", {}),
    ("unknown in zero", zero(2, reduce_bucket=5), f"{Z}.reduce_bucket", "error", {}),
    ("unknown at the top", {**zero(1), "gradient_clip": 1}, "gradient_clip", "warning", {}),
    ("removed", {**zero(1), "amp": {}}, "amp", "error", {}),
    ("removed in zero", zero(3, mics_shard_size=4), f"{Z}.mics_shard_size", "error", {}),
    ("no size", zero(2, reduce_bucket_size="big"), f"{Z}.reduce_bucket_size", "error", {}),
    ("auto nobody fills", {**zero(1), "steps_per_print": "auto"}, "steps_per_print", "error", {}),
    ("auto in a block", zero(1, offload_optimizer={"device": "cpu", "ratio": "auto"}),
     f"{Z}.offload_optimizer.ratio", "warning", {}),
    ("scattered", zero(2, contiguous_gradients=False), f"{Z}.contiguous_gradients", "warning", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "key", "severity", "request_fields"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_findings(
    planning: Any, config: dict[str, Any], key: str, severity: str, request_fields: dict[str, Any]
) -> None:
    found = [f.severity for f in find(planning, config, key, **request_fields)]
    assert severity in found


def test_the_nearest_key_is_named(planning: Any) -> None:
    advice = one(planning, zero(2, reduce_bucket=5), f"{Z}.reduce_bucket").advice
    assert advice == "did you mean reduce_bucket_size?"


def test_auto_of_a_size_that_nobody_fills_in(planning: Any) -> None:
    found = find(planning, zero(2, allgather_bucket_size="auto"), f"{Z}.allgather_bucket_size")
    assert any("500,000,000" in f.message and f.severity == "warning" for f in found)


def test_filled_autos_are_one_note_with_transformers(planning: Any) -> None:
    config = {**zero(3, reduce_bucket_size="auto"), "train_batch_size": "auto"}
    notes = [f for f in lint(config, planning.request(gpus=4)) if '"auto"' in f.message]
    assert [f.severity for f in notes] == ["note"]


@pytest.mark.parametrize(
    ("stage", "overlap", "size", "expected"),
    [
        (1, True, 5e8, 2 * 500_000_000),
        (2, False, 5e8, 2 * 500_000_000),
        (2, True, 5e8, 2 * 500_000_000),
        (3, True, "auto", 2 * 4096 * 4096),
        (2, True, 1e12, 2 * P),
    ],
)
def test_reduce_bucket(planning: Any, stage: int, overlap: bool, size: Any, expected: int) -> None:
    config = zero(stage, overlap_comm=overlap, reduce_bucket_size=size)
    found = find(planning, config, f"{Z}.reduce_bucket_size", model="7B")
    costs = [f.cost_bytes for f in found if f.cost_bytes is not None]
    assert costs == [expected]


def test_buckets_that_cost_more_than_stage_2_saves(planning: Any) -> None:
    """BERT-large sized, 4 GPUs (deepspeed#1302): 3/4 of the gradients against buckets of 335M."""
    config = zero(2, overlap_comm=True)
    found = find(planning, config, f"{Z}.stage", model="335M")
    saved = 2 * (335_000_000 - 335_000_000 // 4)
    assert [f.cost_bytes for f in found] == [9 * 2 * 335_000_000 - saved]
    small = zero(2, overlap_comm=True, reduce_bucket_size=1e7, allgather_bucket_size=1e7)
    assert find(planning, small, f"{Z}.stage", model="335M") == []


def test_overlap_comm_by_transformers_rule(planning: Any) -> None:
    """5e8 elements x 2 bytes x 2 buckets x 4.5 = 9 GB."""
    found = one(planning, zero(2, overlap_comm=True), f"{Z}.overlap_comm")
    assert f"{9e9 / 2**30:.1f} GiB" in found.message
    assert found.cost_bytes == 9 * 10**9 - 2 * 500_000_000
    assert found.severity == "warning"
    small = zero(2, overlap_comm=True, reduce_bucket_size=5e7, allgather_bucket_size=5e7)
    assert one(planning, small, f"{Z}.overlap_comm").severity == "note"


@pytest.mark.parametrize(("live", "severity"), [(1e9, "note"), (P, "warning"), (1e12, "warning")])
def test_live_parameters(planning: Any, live: float, severity: str) -> None:
    config = zero(3, stage3_max_live_parameters=live)
    found = one(planning, config, f"{Z}.stage3_max_live_parameters")
    assert found.severity == severity
    assert found.cost_bytes == 2 * min(int(live), P)


def test_sub_group(planning: Any) -> None:
    share = -(-P // 4)
    found = one(planning, zero(3, sub_group_size=1e12), f"{Z}.sub_group_size")
    assert (found.severity, found.cost_bytes) == ("warning", 4 * share)
    assert one(planning, zero(3), f"{Z}.sub_group_size").cost_bytes == 4 * 10**9


def test_persistent_parameters() -> None:
    shape = ModelShape(
        name="tiny", family="llama", layers=3, hidden_size=8, heads=2, kv_heads=1, head_dim=4,
        intermediate_size=16, vocab_size=100, max_positions=64,
    )  # fmt: skip
    norms = 3 * 2 * 8 + 8
    assert persistent_parameters(shape, 0) == 0
    assert persistent_parameters(shape, 8) == 0
    assert persistent_parameters(shape, 9) == norms
    keys_and_values = 3 * 2 * (4 * 8)
    assert persistent_parameters(shape, 33) == norms + keys_and_values
    everything = shape.parameters - shape.head_parameters
    assert persistent_parameters(shape, 10**9) == everything


def test_a_threshold_that_shards_nothing(planning: Any) -> None:
    found = one(
        planning,
        zero(3, stage3_param_persistence_threshold=10**10),
        f"{Z}.stage3_param_persistence_threshold",
    )
    assert found.severity == "warning"


def test_host_of_offload(planning: Any) -> None:
    config = zero(3, offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"})
    states = one(planning, config, f"{Z}.offload_optimizer", nodes=2)
    assert states.cost_bytes == 16 * P // 2
    assert states.severity == "note"
    enough = 24 * P
    key = f"{Z}.offload_optimizer"
    assert one(planning, config, key, host_memory_bytes=enough).severity == "note"
    assert one(planning, config, key, host_memory_bytes=enough - 1).severity == "error"
    weights = one(planning, config, f"{Z}.offload_param", nodes=2)
    assert weights.cost_bytes == 2 * P // 2


def test_pinned_memory(planning: Any) -> None:
    config = zero(2, offload_optimizer={"device": "cpu"})
    key = f"{Z}.offload_optimizer.pin_memory"
    assert one(planning, config, key).cost_bytes == 4 * P
    assert one(planning, config, key, host_memory_bytes=8 * P).severity == "note"
    assert one(planning, config, key, host_memory_bytes=8 * P - 1).severity == "warning"
    both = zero(3, offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"})
    assert one(planning, both, key, accumulation_steps=1).cost_bytes == 6 * P
    assert one(planning, both, key, accumulation_steps=2, nodes=2).cost_bytes == 8 * P // 2
    unpinned = zero(2, offload_optimizer={"device": "cpu", "pin_memory": False})
    assert find(planning, unpinned, key) == []


@pytest.mark.parametrize(("stage", "count"), [(1, P), (2, -(-P // 4)), (3, -(-P // 4))])
def test_fp32_gradients(planning: Any, stage: int, count: int) -> None:
    config = {**zero(stage), "data_types": {"grad_accum_dtype": "fp32"}}
    assert one(planning, config, "data_types.grad_accum_dtype").cost_bytes == 4 * count


def test_everything_in_fp32(planning: Any) -> None:
    config = {Z: {"stage": 3}, "gradient_clipping": 1}
    assert one(planning, config, "bf16.enabled").cost_bytes == 2 * -(-P // 4)
    assert find(planning, config, "bf16.enabled", precision="fp32") == []


def test_saving(planning: Any) -> None:
    key = f"{Z}.stage3_gather_16bit_weights_on_model_save"
    config = zero(3, stage3_gather_16bit_weights_on_model_save=True)
    assert one(planning, config, key).cost_bytes == 2 * P
    assert find(planning, config, key, peft="lora") == []


def test_errors_come_first(planning: Any) -> None:
    found = lint(zero(2, reduce_bucket=5, overlap_comm=True), planning.request(gpus=1))
    order = [f.severity for f in found]
    assert order == sorted(order, key=["error", "warning", "note"].index)


def test_a_finding_is_one_line() -> None:
    finding = Finding(severity="note", key="a.b", message="costs much")
    assert finding.line() == "note: a.b: costs much"
    assert finding.model_copy(update={"advice": "stop"}).line() == "note: a.b: costs much; stop"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (zero(2), {"strategy": "zero2", "offload": "none", "precision": "bf16"}),
        (zero(0), {"strategy": "ddp", "offload": "none"}),
        ({Z: {"stage": 1}}, {"precision": "fp32"}),
        ({Z: {"stage": 1}, "bf16": {"enabled": "auto"}}, {"precision": "bf16"}),
        ({Z: {"stage": 1}, "fp16": {"enabled": True}}, {"precision": "fp16"}),
        (zero(3, offload_optimizer={"device": "cpu"}), {"offload": "optimizer"}),
        (zero(3, offload_param={"device": "cpu"}), {"offload": "all"}),
        (zero(3, offload_param={"device": "nvme"}), {"offload": "nvme"}),
        (zero(2, cpu_offload=True), {"offload": "optimizer"}),
        (
            {**zero(1), "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"},
            {"micro_batch": 4, "accumulation_steps": 8},
        ),
        ({**zero(1), "data_types": {"grad_accum_dtype": "fp32"}}, {"gradient_type": "fp32"}),
    ],
)
def test_the_run_that_it_describes(
    planning: Any, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = request_with(config, planning.request(gpus=4))
    assert {name: getattr(made, name) for name in expected} == expected
    assert made.ds_config == config


def test_its_sizes_are_planned(planning: Any) -> None:
    from qdeploy.plan import plan

    def total(**settings: Any) -> int:
        asked = planning.request(gpus=8, checkpointing=True)
        return plan(request_with(zero(2, **settings), asked)).candidates[0].per_gpu.total_bytes

    small = {"reduce_bucket_size": 5e7, "allgather_bucket_size": 5e7}
    assert total(overlap_comm=True) > total(overlap_comm=True, **small)


@pytest.mark.parametrize("stage", [4, -1, "2", True, None])
def test_no_such_stage(planning: Any, stage: Any) -> None:
    with pytest.raises(InputError, match="stage"):
        lint({Z: {"stage": stage}}, planning.request())


@pytest.mark.parametrize("block", [True, [1], "on"])
def test_zero_must_be_an_object(planning: Any, block: Any) -> None:
    with pytest.raises(InputError, match="object"):
        lint({Z: block}, planning.request())


def test_keys_are_those_of_deepspeed() -> None:
    from deepspeed.runtime.config import _REMOVED_TOP_LEVEL_CONFIG_KEYS, _REMOVED_ZERO_CONFIG_KEYS
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    keys, _ = read_toml("qdeploy.plan.lint", "keys")
    classes = {
        Z: DeepSpeedZeroConfig,
        f"{Z}.offload_param": DeepSpeedZeroOffloadParamConfig,
        f"{Z}.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
    }
    for path, kind in classes.items():
        names = set(kind.model_fields)
        names |= {info.alias for info in kind.model_fields.values() if info.alias}
        assert set(keys["inside"][path]) == names, path
    assert set(keys["removed"]["top"]) == set(_REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert set(keys["removed"][Z]) == set(_REMOVED_ZERO_CONFIG_KEYS)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_reading(tmp_path: Path) -> None:
    config = {"bf16": {"enabled": True}, "wandb": {"project": "训练"}}
    assert read_ds_config(write(tmp_path / "a.json", json.dumps(config))) == config


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ('{\n  "a": 1,\n}', "line 3", "comma"),
        ('{\n  // why\n  "a": 1\n}', "line 2, column 3", "comments"),
        ('{"a": 1 /* why */}', "column 9", "comments"),
        ('{"a": 1, "a": 2}', "'a' twice", "one of them"),
        ("[1]", "object", None),
        ("", "line 1, column 1", None),
    ],
)
def test_no_json(tmp_path: Path, text: str, said: str, hint: str | None) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_ds_config(write(tmp_path / "ds.json", text))
    assert "\n" not in caught.value.message
    if hint is None:
        assert caught.value.hint is None
    else:
        assert hint in (caught.value.hint or "")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_ds_config(tmp_path / "no.json")
