"""DeepSpeed's own classes accept what is emitted, and its rules are the ones written here."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import pytest

from qdeploy.core.errors import InputError
from qdeploy.plan.deepspeed import (
    SIZES,
    DsSettings,
    LossScaling,
    bucket_bytes,
    ds_config,
    element_count,
    zero_optimization,
)


@pytest.fixture(scope="module")
def deepspeed_config() -> Any:
    """DeepSpeedConfig of `config` on `world` ranks."""
    from deepspeed.runtime import config as module

    def make(config: dict[str, Any], world: int) -> Any:
        patch = pytest.MonkeyPatch()
        patch.setattr(module.dist, "get_rank", lambda: 0)
        patch.setattr(module.dist, "get_world_size", lambda: world)
        try:
            return module.DeepSpeedConfig(config)
        finally:
            patch.undo()

    return make


LAYOUTS = [
    ("zero1", "none"), ("zero2", "none"), ("zero2", "optimizer"), ("zero3", "none"),
    ("zero3", "optimizer"), ("zero3", "all"), ("zero3", "nvme"),
]  # fmt: skip
PRECISIONS = [("A100-80GB", "bf16"), ("V100-32GB", "fp16"), ("A100-80GB", "fp32")]


@pytest.mark.parametrize(
    ("layout", "precision", "gradients"),
    list(itertools.product(LAYOUTS, PRECISIONS, [None, "fp32", "16bit"])),
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_deepspeed_accepts(
    planning: Any, deepspeed_config: Any, layout: Any, precision: Any, gradients: Any
) -> None:
    gpu, dtype = precision
    job = planning.job(
        gpu=gpu, gpus=4, nodes=2, precision=dtype, micro_batch=3, accumulation_steps=5,
        gradient_type=gradients,
    )  # fmt: skip
    config = ds_config(job, planning.layout(*layout))
    accepted = deepspeed_config(config, world=8)
    assert accepted.train_batch_size == 3 * 5 * 8
    assert accepted.zero_optimization_stage == int(layout[0][-1])
    assert accepted.bfloat16_config.enabled == (dtype == "bf16")
    assert accepted.float16_config.enabled == (dtype == "fp16")
    zero = accepted.zero_config
    for name, offloads in (("offload_optimizer", ("optimizer", "all", "nvme")),
                           ("offload_param", ("all", "nvme"))):  # fmt: skip
        block = getattr(zero, name)
        assert (block is not None) == (layout[1] in offloads)
        if block is not None:
            assert block.device == ("nvme" if layout[1] == "nvme" else "cpu")
            assert (str(block.nvme_path) == "/local_nvme") == (layout[1] == "nvme")
    expected = {None: None, "fp32": "fp32", "16bit": dtype}[gradients]
    assert accepted.grad_accum_dtype == expected


def test_another_number_of_gpus_is_refused(planning: Any, deepspeed_config: Any) -> None:
    config = ds_config(planning.job(gpus=4), planning.layout("zero2"))
    with pytest.raises(AssertionError, match="train_batch_size is not equal"):
        deepspeed_config(config, world=2)


def test_loss_scaling_and_paths(planning: Any, deepspeed_config: Any) -> None:
    job = planning.job(gpu="V100-32GB", gpus=2, precision="fp16")
    settings = DsSettings(
        gradient_clipping=0.5, loss_scaling=LossScaling(1024, 200, 4), nvme_path="/nvme/a b"
    )
    accepted = deepspeed_config(ds_config(job, planning.layout("zero3", "nvme"), settings), 2)
    scaling = accepted.float16_config
    assert scaling.initial_dynamic_scale() == 1024
    assert (scaling.loss_scale, scaling.loss_scale_window, scaling.min_loss_scale) == (0, 200, 4)
    assert accepted.gradient_clipping == 0.5
    assert str(accepted.zero_config.offload_param.nvme_path) == "/nvme/a b"


def test_defaults_are_deepspeeds() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    own = {info.alias or name: info.get_default() for name, info in fields.items()}
    assert {name: own[name] for name in SIZES} == SIZES


@pytest.mark.parametrize("hidden", [1, 7, 768, 4096, 8192])
def test_auto_is_what_transformers_fills_in(hidden: int) -> None:
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    names = [
        "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    ]  # fmt: skip
    zero = {"stage": 3, **dict.fromkeys(names, "auto")}
    filled = HfTrainerDeepSpeedConfig({"zero_optimization": zero})
    arguments = SimpleNamespace(learning_rate=1e-5, get_warmup_steps=lambda steps: 0)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=hidden))
    filled.trainer_config_finalize(arguments, model, 10)
    expected = {name: filled.config["zero_optimization"][name] for name in names}
    assert {name: element_count(name, "auto", hidden) for name in names} == expected


def test_any_other_auto_is_deepspeeds_default() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    name = "stage3_max_live_parameters"
    assert DeepSpeedZeroConfig(**{name: "auto"}).max_live_parameters == SIZES[name]
    assert element_count(name, "auto", 4096) == SIZES[name]


def test_sizes_of_the_users_configuration(planning: Any) -> None:
    given = {"zero_optimization": {
        "stage": 2, "reduce_bucket_size": 2e8, "stage3_max_live_parameters": 5,
        "max_reuse_distance": 6, "offload_optimizer": {"device": "nvme", "pin_memory": False},
    }}  # fmt: skip
    job = planning.job(gpus=4, ds_config=given)
    two = zero_optimization(job, planning.layout("zero2"))
    assert two == {
        "stage": 2, "reduce_bucket_size": 200_000_000, "allgather_bucket_size": 500_000_000,
        "overlap_comm": False, "contiguous_gradients": True,
    }  # fmt: skip
    three = zero_optimization(job, planning.layout("zero3", "optimizer"))
    assert three["stage"] == 3
    assert three["stage3_max_live_parameters"] == 5
    assert three["stage3_max_reuse_distance"] == 6
    assert three["sub_group_size"] == 1_000_000_000
    assert three["overlap_comm"] is True
    assert three["offload_optimizer"] == {"device": "cpu", "pin_memory": False}


@pytest.mark.parametrize("given", [{}, {"zero_optimization": None}, {"zero_optimization": {}}])
def test_an_empty_configuration_means_deepspeeds_defaults(planning: Any, given: Any) -> None:
    job = planning.job(gpus=4, ds_config=given)
    three = zero_optimization(job, planning.layout("zero3"))
    assert {name: three[name] for name in SIZES} == SIZES


@pytest.mark.parametrize("value", ["many", -1, 0.5, True, None, [1], 0])
def test_sizes_that_are_none(value: Any) -> None:
    with pytest.raises(InputError, match="reduce_bucket_size"):
        element_count("reduce_bucket_size", value, 4096)


def test_zero_is_a_size_where_deepspeed_allows_it() -> None:
    assert element_count("stage3_param_persistence_threshold", 0, 4096) == 0


def test_a_bucket_is_a_small_part_of_what_is_trained(planning: Any) -> None:
    job = planning.job(gpus=2, peft="lora", lora_rank=1)
    block = zero_optimization(job, planning.layout("zero2"))
    assert block["reduce_bucket_size"] == -(-job.trainable // 32) < 50_000_000
    whole = zero_optimization(planning.job(gpus=2), planning.layout("zero1"))
    assert whole["reduce_bucket_size"] == 50_000_000


@pytest.mark.parametrize(
    ("overlap", "reduce", "gather", "expected"),
    [
        (False, 5e8, 5e8, 1_000_000_000),
        (True, 5e8, 5e8, 9_000_000_000),
        (True, 2e8, 2e8, 3_600_000_000),
        (True, 1, 0, 9),
        (False, 1e12, 5e8, 2 * 7_000_000_000),
    ],
)
def test_transformers_rule_for_buckets(
    overlap: bool, reduce: float, gather: float, expected: int
) -> None:
    zero = {
        "overlap_comm": overlap, "reduce_bucket_size": reduce, "allgather_bucket_size": gather,
    }  # fmt: skip
    assert bucket_bytes(zero, 7_000_000_000, 2) == expected


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp"])
def test_other_strategies_have_no_configuration(planning: Any, strategy: str) -> None:
    with pytest.raises(InputError, match="without DeepSpeed"):
        ds_config(planning.job(gpus=2), planning.layout(strategy))


def test_model_parallelism_is_refused(planning: Any) -> None:
    job = planning.job(gpus=4, tensor_parallel=2)
    with pytest.raises(InputError, match="data-parallel"):
        ds_config(job, planning.layout("zero1"))
