"""From a recipe to the request that plans it, and to its DeepSpeed configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from qdeploy.core.artifacts import read_json
from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB
from qdeploy.plan.deepspeed import DsSettings, LossScaling, ds_config
from qdeploy.plan.job import make_job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.request import Offload, PlanRequest
from qdeploy.train.recipe import Recipe

CPU = "cpu"
TRAINER_LOSS = "trl"
"""How TRL's SFTTrainer computes the loss, whatever the plan was made for."""
# Tensors are as large on a CPU as on a GPU, and on the allocated basis no part depends on which.
_STAND_IN = "A100-80GB"
_FIXED = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "bf16", "fp16",
)  # fmt: skip


def request_of(recipe: Recipe) -> PlanRequest:
    """The request that plans exactly this recipe.

    Raises InputError for settings that do not go together, and for a DeepSpeed configuration that
    cannot be read.
    """
    request = _plain_request(recipe)
    if recipe.strategy.deepspeed == "auto":
        return request
    return replace(request, ds_config=_laid_over(recipe, request))


def run_request(recipe: Recipe) -> PlanRequest:
    """The request that plans this recipe as `qdeploy train` runs it: with TRL's loss.

    Raises InputError as `request_of` does.
    """
    return replace(request_of(recipe), loss=recipe.loss or TRAINER_LOSS)


def ds_json_of(recipe: Recipe) -> dict[str, Any] | None:
    """The DeepSpeed configuration of the run; None where DeepSpeed has no part in it.

    Raises InputError for a given configuration that contradicts the recipe.
    """
    if recipe.strategy.name is None:
        raise InputError(
            "the recipe leaves the strategy to the planner: there is no configuration yet",
            hint="give strategy.name, or write the recipe with train-plan --recipe-out",
        )
    if not layout_of(recipe).deepspeed:
        return None
    request = _plain_request(recipe)
    if recipe.strategy.deepspeed == "auto":
        return _derived(recipe, request)
    return _laid_over(recipe, request)


def layout_of(recipe: Recipe) -> Layout:
    """The layout of a recipe with a strategy; offload none and checkpointing unless it says so."""
    strategy = recipe.strategy
    assert strategy.name is not None
    enabled = recipe.checkpointing.enabled
    offload: Offload = "none" if strategy.offload is None else strategy.offload
    return Layout(find_strategy(strategy.name), offload, True if enabled is None else enabled)


def _laid_over(recipe: Recipe, request: PlanRequest) -> dict[str, Any]:
    given = recipe.strategy.deepspeed
    own = read_json(Path(given)) if isinstance(given, str) else given
    if not isinstance(own, dict):
        raise InputError(f"{given} must hold a JSON object", hint="give a DeepSpeed configuration")
    derived = _derived(recipe, request)
    _check_agrees(own, derived)
    return _merged(derived, own)


def _derived(recipe: Recipe, request: PlanRequest) -> dict[str, Any]:
    scaling = recipe.loss_scaling
    settings = DsSettings(
        gradient_clipping=recipe.optimizer.gradient_clipping,
        loss_scaling=LossScaling(scaling.initial, scaling.window, scaling.minimum),
        nvme_path=recipe.strategy.nvme_path,
    )
    return ds_config(make_job(request), layout_of(recipe), settings)


def _check_agrees(own: Mapping[str, Any], derived: Mapping[str, Any]) -> None:
    """Raise InputError where `own` says otherwise than the recipe that it stands in."""
    pairs = [(key, own[key], derived.get(key)) for key in _FIXED if key in own]
    zero, counted = own.get("zero_optimization"), derived["zero_optimization"]
    if isinstance(zero, Mapping):
        if "stage" in zero:
            pairs.append(("zero_optimization.stage", zero["stage"], counted["stage"]))
        pairs += [
            (f"zero_optimization.{key}.device", _device(zero, key), _device(counted, key))
            for key in ("offload_optimizer", "offload_param")
            if key in zero
        ]
    for key, value, planned in pairs:
        if value not in (planned, "auto") and not _same_block(value, planned):
            raise InputError(
                f"strategy.deepspeed says {key} {json.dumps(value)}, the recipe itself "
                f"{json.dumps(planned)}",
                hint=f"take {key} out of strategy.deepspeed: it follows from the recipe",
            )


def _device(zero: Mapping[str, Any], key: str) -> Any:
    block = zero.get(key)
    return block.get("device", "none") if isinstance(block, Mapping) else "none"


def _same_block(value: Any, planned: Any) -> bool:
    """Both on, or both off: bf16 and fp16 may be tuned, but not switched."""
    if not isinstance(value, Mapping):
        return False
    on = bool((planned or {}).get("enabled", False))
    return value.get("enabled", on) in (on, "auto")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        if value == "auto" and key in below:
            continue
        inner = below.get(key)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        merged[key] = _merged(cast("Mapping[str, Any]", inner), value) if both else value
    return merged


def _plain_request(recipe: Recipe) -> PlanRequest:
    hardware, peft, parallel = recipe.hardware, recipe.peft, recipe.parallel
    memory = hardware.host_memory_gib
    adapters: dict[str, Any] = {}
    if peft is not None:
        adapters = {
            "peft": peft.kind,
            "lora_rank": peft.rank,
            "lora_targets": peft.targets,
            "lora_dropout": peft.dropout > 0,
            "train_embeddings": peft.train_embeddings,
            "base": peft.base,
        }
    on_cpu = hardware.gpu == CPU
    return PlanRequest(
        model=recipe.model,
        gpu=_STAND_IN if on_cpu else hardware.gpu,
        basis="allocated" if on_cpu else "device",
        gpus=hardware.gpus,
        nodes=hardware.nodes,
        host_memory_bytes=None if memory is None else int(memory * GIB),
        micro_batch=recipe.batch.micro_batch,
        seq_len=recipe.data.seq_len,
        global_batch=recipe.batch.global_batch,
        accumulation_steps=recipe.accumulation_steps,
        precision=recipe.precision,
        optimizer=recipe.optimizer.name,
        optimizer_in_backward=recipe.optimizer.in_backward,
        gradient_type=recipe.optimizer.gradient_type,
        strategy=recipe.strategy.name,
        offload=recipe.strategy.offload,
        checkpointing=recipe.checkpointing.enabled,
        recompute=recipe.checkpointing.recompute,
        activation_offload=recipe.checkpointing.activation_offload,
        attention=recipe.attention,
        packing=recipe.data.packing,
        compile=recipe.compile,
        loss=recipe.loss,
        tensor_parallel=parallel.tensor,
        sequence_parallel=parallel.sequence,
        pipeline_parallel=parallel.pipeline,
        context_parallel=parallel.context,
        expert_parallel=parallel.expert,
        **adapters,
    )
