"""What a recipe will do, without doing it: layout, memory by part, DeepSpeed JSON, launch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema
from qdeploy.core.units import GIB
from qdeploy.plan.planner import plan
from qdeploy.plan.schema import Candidate, Plan
from qdeploy.train.recipe import Recipe
from qdeploy.train.request import CPU, ds_json_of, run_request

_PORT = 29500


class DryRun(Schema):
    """A recipe as it would run."""

    recipe: Recipe
    """With strategy, offload and checkpointing filled in."""
    candidate: Candidate
    """Memory by part; on CPUs that of one process, in tensors."""
    capacity_bytes: int | None
    """What one GPU (with cpu: the node) has; None: not known."""
    fits: bool | None
    """None: not judged, because the memory of a CPU node was not given."""
    suggestion: str | None
    """When it does not fit: the smallest change that would make it fit."""
    global_batch: int
    """Sequences of one optimizer step."""
    learning_rate: float
    adam_eps: float
    deepspeed: dict[str, Any] | None
    """The DeepSpeed configuration; None where DeepSpeed has no part."""
    launch: tuple[str, ...]
    """The command; with several nodes one for each."""
    warnings: list[str]


def dry_run(
    recipe: Recipe, path: Path = Path("recipe.yaml"), *, processes: int | None = None
) -> DryRun:
    """Plan `recipe`, which lies at `path`, exactly as it is.

    `processes` replaces the recipe's number (see `with_processes`).
    Raises InputError for a model, GPU or setting that is not there or cannot be together, and for
    BF16 on a GPU without it.
    """
    recipe = with_processes(recipe, processes)
    on_cpu = recipe.hardware.gpu == CPU
    if on_cpu and recipe.strategy.name is None:
        raise InputError(
            "on CPUs the planner chooses no strategy", hint="give strategy.name: none, ddp, zero2"
        )
    planned = plan(run_request(recipe))
    _check_precision(recipe, planned)
    candidate = planned.chosen or min(planned.candidates, key=lambda c: c.per_gpu.total_bytes)
    whole = _filled(recipe, candidate)
    return DryRun(
        recipe=whole,
        candidate=candidate,
        capacity_bytes=_node_bytes(recipe) if on_cpu else planned.capacity_bytes,
        fits=_fits_on_host(recipe, candidate) if on_cpu else candidate.fits,
        suggestion=None if on_cpu else planned.suggestion,
        global_batch=recipe.global_batch,
        learning_rate=recipe.learning_rate,
        adam_eps=recipe.adam_eps,
        deepspeed=ds_json_of(whole),
        launch=launch_commands(recipe, path, processes),
        warnings=_warnings(recipe, planned),
    )


def with_processes(recipe: Recipe, processes: int | None) -> Recipe:
    """`recipe` for `processes` GPUs (with cpu: processes) of one node; None: as it is.

    Raises InputError for a number below 1, and for a recipe of several nodes.
    """
    if processes is None or processes == recipe.hardware.gpus:
        return recipe
    if processes < 1:
        raise InputError(f"--nproc must be at least 1, found {processes}")
    if recipe.hardware.nodes > 1:
        raise InputError(
            f"--nproc is for one node, the recipe is for {recipe.hardware.nodes}",
            hint="change hardware.gpus and hardware.nodes in the recipe",
        )
    hardware = recipe.hardware.model_copy(update={"gpus": processes})
    return recipe.model_copy(update={"hardware": hardware})


def launch_commands(recipe: Recipe, path: Path, processes: int | None = None) -> tuple[str, ...]:
    """The command that starts all processes; with several nodes the command of each node.

    `processes` is what `with_processes` was given.
    """
    hardware, name = recipe.hardware, shlex.quote(str(path))
    if hardware.nodes == 1:
        option = "" if processes is None else f" --nproc {processes}"
        return (f"qdeploy train {name}{option}",)
    return tuple(
        f"torchrun --nnodes {hardware.nodes} --node_rank {node} --nproc_per_node {hardware.gpus} "
        f'--master_addr "$MASTER_ADDR" --master_port {_PORT} -m qdeploy.train.worker {name}'
        for node in range(hardware.nodes)
    )


def _filled(recipe: Recipe, candidate: Candidate) -> Recipe:
    strategy = {"name": candidate.strategy, "offload": candidate.offload}
    return recipe.model_copy(
        update={
            "strategy": recipe.strategy.model_copy(update=strategy),
            "checkpointing": recipe.checkpointing.model_copy(
                update={"enabled": candidate.checkpointing}
            ),
        }
    )


def _check_precision(recipe: Recipe, planned: Plan) -> None:
    if recipe.hardware.gpu == CPU:
        if recipe.precision == "fp16":
            raise InputError("FP16 training needs a GPU", hint="use precision: bf16 or fp32")
        return
    if recipe.precision == "bf16" and planned.precision.dtype != "bf16":
        raise InputError(
            f"precision: bf16, but {planned.precision.reason}",
            hint="write precision: fp16 (Adam eps 1e-6 and loss scaling come with it)",
        )


def _node_bytes(recipe: Recipe) -> int | None:
    memory = recipe.hardware.host_memory_gib
    return None if memory is None else int(memory * GIB)


def _fits_on_host(recipe: Recipe, candidate: Candidate) -> bool | None:
    node = _node_bytes(recipe)
    if node is None:
        return None
    processes = recipe.hardware.gpus * candidate.per_gpu.high_bytes
    return max(processes, candidate.host_init_bytes) <= node


def _warnings(recipe: Recipe, planned: Plan) -> list[str]:
    found = list(planned.warnings)
    if recipe.hardware.gpu == CPU:
        found.append(
            "on CPUs the memory is that of tensors: Python, PyTorch and the data come on top"
        )
    if recipe.model == planned.model.name and not Path(recipe.model).expanduser().is_dir():
        found.append(
            f"{recipe.model} is a size to plan with: training needs a folder or a hub id as model"
        )
    return found
