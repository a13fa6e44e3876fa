"""A plan, its recipe, and the plan of that recipe are the same run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.core.schema import validate
from qdeploy.plan import Plan, PlanRequest, plan
from qdeploy.train.from_plan import origin, recipe_from_plan, write_recipe
from qdeploy.train.recipe import Recipe, read_recipe
from qdeploy.train.request import ds_json_of, request_of


def planned(**fields: Any) -> Plan:
    asked = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "A100-80GB", "gpus": 4, **fields}
    return plan(PlanRequest(**asked))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"strategy": "zero1"},
        {"strategy": "zero2", "offload": "optimizer", "accumulation_steps": 3},
        {"strategy": "zero3", "offload": "nvme", "checkpointing": True},
        {"strategy": "fsdp", "checkpointing": False, "compile": True},
        {"gpus": 1, "strategy": "none", "peft": "qlora", "lora_rank": 8, "base": "nf4"},
        {"strategy": "ddp", "peft": "lora", "lora_targets": ("q_proj",), "lora_dropout": True},
        {"gpu": "V100-32GB", "strategy": "zero2"},
        {"precision": "bf16-pure", "strategy": "ddp", "optimizer": "adamw8bit"},
        {"micro_batch": None, "global_batch": 64, "nodes": 2, "packing": True, "seq_len": 512},
        {"loss": "liger", "attention": "flash", "gradient_type": "fp32", "strategy": "zero1"},
        {"host_memory_bytes": 10**12},
        {"tensor_parallel": 2, "strategy": "ddp"},
    ],
    ids=str,
)
def test_round_trip(tmp_path: Path, fields: Any) -> None:
    first = planned(**fields)
    chosen = first.chosen
    assert chosen is not None
    path = tmp_path / "recipe.yaml"
    made = recipe_from_plan(first, "data/")
    write_recipe(made, path, comments=origin(first))
    recipe = read_recipe(path)
    assert recipe == made
    again = plan(request_of(recipe))
    assert len(again.candidates) == 1
    same = again.candidates[0]
    for field in type(chosen).model_fields:
        if field not in ("reason", "relative_step_time"):
            assert getattr(same, field) == getattr(chosen, field), field
    assert again.precision.dtype == first.precision.dtype
    assert recipe.adam_eps == first.precision.adam_eps


def test_the_deepspeed_sizes_stand_in_the_recipe() -> None:
    recipe = recipe_from_plan(planned(strategy="zero3"), "data/")
    given = recipe.strategy.deepspeed
    assert isinstance(given, dict)
    assert given["zero_optimization"]["stage"] == 3
    assert given["zero_optimization"]["reduce_bucket_size"] == 896 * 896


def test_a_folder_stays_the_model() -> None:
    assert recipe_from_plan(planned(), "d", model="./我的模型").model == "./我的模型"
    assert recipe_from_plan(planned(), "d").model == "Qwen/Qwen2.5-0.5B"


def test_nothing_fits() -> None:
    nothing = planned(model="70B", gpu="T4", gpus=1, offload="none")
    assert origin(nothing) == ()
    with pytest.raises(InputError, match="nothing fits"):
        recipe_from_plan(nothing, "data/")


def test_a_plan_for_other_code_is_refused() -> None:
    other = planned(strategy="ddp")
    other = other.model_copy(update={"request": replace(other.request, trainer="torchtune")})
    with pytest.raises(InputError, match="torchtune"):
        recipe_from_plan(other, "data/")


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="already exists"):
        write_recipe(recipe_from_plan(planned(), "d"), path)
    assert path.read_text(encoding="utf-8") == "mine"


def zero2(**strategy: Any) -> Recipe:
    return validate(
        Recipe,
        {
            "model": "Qwen/Qwen2.5-0.5B",
            "data": {"path": "d"},
            "hardware": {"gpu": "A100-80GB", "gpus": 4},
            "strategy": {"name": "zero2", "offload": "none", **strategy},
        },
        "recipe",
    )


def test_given_settings_lie_over_the_derived_ones(tmp_path: Path) -> None:
    own = {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 7_000_000, "overlap_comm": "auto"},
        "train_batch_size": "auto",
        "wall_clock_breakdown": True,
    }
    derived = ds_json_of(zero2())
    made = ds_json_of(zero2(deepspeed=own))
    assert derived is not None
    assert made is not None
    assert made["zero_optimization"] == {
        **derived["zero_optimization"], "reduce_bucket_size": 7_000_000,
    }  # fmt: skip
    assert made["wall_clock_breakdown"] is True
    assert made["train_batch_size"] == derived["train_batch_size"] == 32
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(own), encoding="utf-8")
    assert ds_json_of(zero2(deepspeed=str(file))) == made
    smaller = plan(request_of(zero2(deepspeed=own))).candidates[0].per_gpu
    larger = plan(request_of(zero2())).candidates[0].per_gpu
    assert smaller.total_bytes <= larger.total_bytes


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu 4"),
        ({"zero_optimization": {"stage": 3}}, "stage 3"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "offload_optimizer"),
        ({"bf16": {"enabled": False}}, "bf16"),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"gradient_clipping": 0.1}, "gradient_clipping"),
        ({"zero_optimization": {"reduce_bucket_size": "big"}}, "reduce_bucket_size"),
    ],
)
def test_settings_that_contradict_the_recipe(own: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(request_of(zero2(deepspeed=own)))


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ds.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"ds\.json"):
        request_of(zero2(deepspeed=str(file)))


def test_tuned_precision_is_no_contradiction() -> None:
    made = ds_json_of(zero2(deepspeed={"bf16": {"enabled": "auto", "check_grad_overflow": False}}))
    assert made is not None
    assert made["bf16"] == {"enabled": True, "check_grad_overflow": False}
