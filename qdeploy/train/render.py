"""What a recipe will do, as text for a person."""

from __future__ import annotations

import json
from pathlib import Path

from qdeploy.core.units import format_bytes
from qdeploy.plan.schema import PARTS
from qdeploy.train.dry_run import DryRun
from qdeploy.train.launch import hostfile, slurm_script


def render_dry_run(made: DryRun, path: Path) -> list[str]:
    """Layout, memory by part, the DeepSpeed configuration, and how to start it."""
    lines = [*_layout(made), "", *_memory(made)]
    if made.suggestion is not None:
        lines.append(made.suggestion)
    if made.deepspeed is not None:
        lines += ["", "DeepSpeed configuration:", json.dumps(made.deepspeed, indent=2)]
    lines += ["", "start it with:", *made.launch]
    if made.recipe.hardware.nodes > 1:
        lines += ["", "hostfile (names are yours):", hostfile(made.recipe).rstrip()]
        lines += ["", "SLURM script:", slurm_script(made.recipe, path).rstrip()]
    return [*lines, *(f"warning: {warning}" for warning in made.warnings)]


def _layout(made: DryRun) -> list[str]:
    recipe, hardware = made.recipe, made.recipe.hardware
    nodes = f"{hardware.nodes} nodes of " if hardware.nodes > 1 else ""
    place = recipe.strategy.offload or "none"
    offload = "" if place == "none" else f", offload {place}"
    way = "with" if recipe.checkpointing.enabled else "without"
    where = f"{nodes}{hardware.gpus} x {hardware.gpu}"
    sizes = (recipe.batch.micro_batch, recipe.accumulation_steps, recipe.data_parallel)
    product = " x ".join(map(str, sizes))
    rates = f"learning rate {made.learning_rate:g}, eps {made.adam_eps:g}"
    return [
        f"{recipe.model}: {where}, {recipe.strategy.name}{offload}, {way} checkpointing, "
        + recipe.precision,
        f"batch: {product} = {made.global_batch} sequences of {recipe.data.seq_len} tokens; "
        + rates,
    ]


def _memory(made: DryRun) -> list[str]:
    parts = made.candidate.per_gpu
    sizes = {part: getattr(parts, f"{part}_bytes") for part in PARTS}
    lines = [
        f"{part.replace('_', ' '):<16} {format_bytes(size):>10}"
        for part, size in sizes.items()
        if size
    ]
    verdict = {True: "fits", False: "does not fit", None: "not judged"}[made.fits]
    room = "" if made.capacity_bytes is None else f" of {format_bytes(made.capacity_bytes)}"
    return [*lines, f"{'a process':<16} {format_bytes(parts.total_bytes):>10}{room}: {verdict}"]
