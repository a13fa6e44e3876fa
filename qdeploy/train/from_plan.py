"""From a plan to the recipe of what it chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from qdeploy.core.artifacts import write_text
from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB, format_bytes
from qdeploy.plan.deepspeed import ds_config
from qdeploy.plan.emit import chosen_of, narrowed
from qdeploy.plan.hf_names import model_id
from qdeploy.plan.job import make_job
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.schema import Candidate, Plan
from qdeploy.train.recipe import SCHEMA, Recipe
from qdeploy.train.request import layout_of

_SHOWN_PARTS = {
    "data": ("seq_len",),
    "optimizer": ("name",),
    "batch": ("micro_batch",),
}


def recipe_from_plan(plan: Plan, data: str, model: str | None = None) -> Recipe:
    """The recipe of what `plan` chose, on the data at `data`.

    `model` is what the weights are loaded from; None: as the plan names it. The DeepSpeed sizes
    that the plan counted stand in the recipe. Raises InputError when nothing fits.
    """
    chosen = chosen_of(plan, "recipe to write")
    request = narrowed(plan, chosen)
    if request.trainer != "hf":
        raise InputError(
            f"the plan is for the code of {request.trainer}; recipes train transformers' models",
            hint="plan with --trainer hf",
        )
    recipe = Recipe.model_validate(
        {
            "model": model or model_id(str(plan.request.model)),
            "data": {"path": data, "packing": request.packing, "seq_len": request.seq_len},
            "batch": {
                "micro_batch": chosen.micro_batch,
                "accumulation_steps": chosen.accumulation_steps,
            },
            "strategy": {"name": chosen.strategy, "offload": chosen.offload},
            **_settings(request),
        }
    )
    return _with_sizes(recipe, plan, chosen)


def _with_sizes(recipe: Recipe, plan: Plan, chosen: Candidate) -> Recipe:
    """`recipe` with the `zero_optimization` that the plan counted."""
    layout = layout_of(recipe)
    if not layout.deepspeed or recipe.world != recipe.data_parallel:
        return recipe
    request = replace(narrowed(plan, chosen), model=plan.model.shape)
    whole = ds_config(make_job(request), layout)
    sizes = {"zero_optimization": whole["zero_optimization"]}
    strategy = recipe.strategy.model_copy(update={"deepspeed": sizes})
    return recipe.model_copy(update={"strategy": strategy})


def write_recipe(recipe: Recipe, path: Path, *, comments: tuple[str, ...] = ()) -> None:
    """Write `recipe` as YAML, with `comments` at the top; most defaults are left out.

    Raises InputError when there is a file at `path`.
    """
    import yaml

    if path.exists():
        raise InputError(f"{path} already exists", hint="choose another name or remove it first")
    text = yaml.safe_dump(_readable(recipe), sort_keys=False, allow_unicode=True)
    head = "".join(f"# {line}\n" for line in comments)
    write_text(path, head + text)


def _readable(recipe: Recipe) -> dict[str, Any]:
    """What differs from the defaults, and the sizes that a reader looks for first."""
    whole = recipe.model_dump(mode="json", by_alias=True)
    short = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    shown: dict[str, Any] = {"schema": SCHEMA}
    for key, value in whole.items():
        if key in _SHOWN_PARTS:
            parts = short.get(key, {})
            names = [name for name in value if name in parts or name in _SHOWN_PARTS[key]]
            shown[key] = {name: value[name] for name in names}
        elif key in short or key == "precision":
            shown[key] = short.get(key, value)
    return shown


def origin(plan: Plan) -> tuple[str, ...]:
    """Where a recipe from `plan` comes from, as comment lines."""
    chosen, request = plan.chosen, plan.request
    if chosen is None:
        return ()
    nodes = f"{request.nodes} x " if request.nodes > 1 else ""
    where = f"{plan.model.name} on {nodes}{request.gpus}x{plan.gpu.name}"
    room = f"{format_bytes(chosen.per_gpu.total_bytes)} of {format_bytes(plan.capacity_bytes)}"
    return (
        "Written by `qdeploy train-plan --recipe-out`.",
        f"{where}: {room} a GPU on the {request.basis} basis.",
        f"{chosen.strategy}: {chosen.reason}.",
    )


def _settings(request: PlanRequest) -> dict[str, Any]:
    """What the recipe takes from the request as it is."""
    return {
        "hardware": _hardware(request),
        "precision": request.precision,
        "optimizer": {
            "name": request.optimizer,
            "in_backward": request.optimizer_in_backward,
            "gradient_type": request.gradient_type,
        },
        "checkpointing": {
            "enabled": request.checkpointing,
            "recompute": request.recompute,
            "activation_offload": request.activation_offload,
        },
        "attention": request.attention,
        "loss": request.loss,
        "compile": request.compile,
        "peft": _peft(request),
        "parallel": _parallel(request),
    }


def _hardware(request: PlanRequest) -> dict[str, Any]:
    memory = request.host_memory_bytes
    return {
        "gpu": request.gpu,
        "gpus": request.gpus,
        "nodes": request.nodes,
        "host_memory_gib": None if memory is None else memory / GIB,
    }


def _peft(request: PlanRequest) -> dict[str, Any] | None:
    if request.peft is None:
        return None
    return {
        "kind": request.peft,
        "rank": request.lora_rank,
        "dropout": 0.05 if request.lora_dropout else 0.0,
        "targets": request.lora_targets,
        "train_embeddings": request.train_embeddings,
        "base": request.base,
    }


def _parallel(request: PlanRequest) -> dict[str, Any]:
    return {
        "tensor": request.tensor_parallel,
        "sequence": request.sequence_parallel,
        "pipeline": request.pipeline_parallel,
        "context": request.context_parallel,
        "expert": request.expert_parallel,
    }
