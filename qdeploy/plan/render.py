"""A plan as tables for a person."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qdeploy.core.console import results
from qdeploy.core.units import GB, GIB
from qdeploy.plan.accounting import find_accounting, shown
from qdeploy.plan.schema import PARTS, Candidate, Plan

_HEADINGS = {
    "weights": "weight",
    "master_weights": "master",
    "gradients": "grad",
    "optimizer": "optim",
    "activations": "activ",
    "logits": "logits",
    "buffers": "buffer",
    "framework": "other",
}


def print_plan(plan: Plan) -> None:
    """Print `plan` to stdout."""
    results().print(render(plan))


def render(plan: Plan) -> RenderableType:
    """Heading, one row of memory by part for each candidate, the choice, notes and warnings."""
    lines = [Text(line) for line in _heading(plan)]
    closing = [Text(line, style="bold") for line in _verdict(plan)]
    notes = [Text(f"note: {note}.", style="dim") for note in plan.notes]
    warnings = [Text(f"warning: {warning}.", style="yellow") for warning in plan.warnings]
    return Group(*lines, _table(plan), *closing, *notes, *warnings)


def _heading(plan: Plan) -> list[str]:
    request, model = plan.request, plan.model
    nodes = f"{request.nodes} nodes of " if request.nodes > 1 else ""
    adapters = ""
    if request.peft is not None:
        share = 100 * model.trainable_parameters / model.parameters
        adapters = f", {request.peft} rank {request.lora_rank} ({share:.2f} % trained)"
    unit = find_accounting(plan.accounting).UNIT
    gpus = f"{nodes}{request.gpus}x{plan.gpu.name} ({shown(plan.capacity_bytes, unit)})"
    scaling = "" if plan.precision.loss_scaling == "none" else ", dynamic loss scaling"
    sizes = f"micro-batch {request.micro_batch} x {request.seq_len} tokens"
    kernels = f"{request.optimizer}, {request.attention} attention, {request.loss} loss"
    formats = f"{plan.precision.dtype.upper()}{scaling}, Adam eps {plan.precision.adam_eps:g}"
    return [
        f"{model.name}: {model.parameters:,} parameters{adapters}, on {gpus}",
        f"{sizes}, {kernels}, {formats}",
    ]


def _table(plan: Plan) -> Table:
    unit = find_accounting(plan.accounting).UNIT
    scale = GIB if unit == "GiB" else GB
    table = Table(title=f"Memory of one GPU in {unit}", box=None, padding=(0, 1, 0, 0))
    for heading in ("strategy", "offload", "ckpt"):
        table.add_column(heading, no_wrap=True)
    for heading in (*_HEADINGS.values(), "total", "low-high", "host", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for candidate in plan.candidates:
        table.add_row(
            *_row(plan, candidate, scale), style="bold green" if candidate == plan.chosen else ""
        )
    return table


def _row(plan: Plan, candidate: Candidate, scale: int) -> list[str]:
    sizes = [getattr(candidate.per_gpu, f"{part}_bytes") / scale for part in PARTS]
    low, high = candidate.per_gpu.low_bytes / scale, candidate.per_gpu.high_bytes / scale
    host = max(candidate.host_bytes, candidate.host_init_bytes) / scale
    return [
        candidate.strategy,
        "-" if candidate.offload == "none" else candidate.offload,
        "yes" if candidate.checkpointing else "no",
        *(f"{size:.1f}" for size in sizes),
        f"{candidate.per_gpu.total_bytes / scale:.1f}",
        f"{low:.0f}-{high:.0f}",
        f"{host:.0f}",
        f"{candidate.relative_step_time:.2f}",
        _fit_word(plan, candidate),
    ]


def _fit_word(plan: Plan, candidate: Candidate) -> str:
    if candidate.fits:
        return "yes"
    limit = plan.request.host_memory_bytes
    host = max(candidate.host_bytes, candidate.host_init_bytes)
    host_suffices = limit is None or host <= limit
    marginal = host_suffices and candidate.per_gpu.low_bytes <= plan.capacity_bytes
    return "marginal" if marginal else "no"


def _verdict(plan: Plan) -> list[str]:
    chosen = plan.chosen
    if chosen is not None:
        offload = "" if chosen.offload == "none" else f" with {chosen.offload} on the host"
        way = "with" if chosen.checkpointing else "without"
        return [f"take {chosen.strategy}{offload}, {way} checkpointing: {chosen.reason}."]
    closest = min(plan.candidates, key=lambda c: c.per_gpu.total_bytes)
    lines = [f"nothing fits; the smallest is {closest.strategy}: {closest.reason}."]
    return [*lines, f"{plan.suggestion}."] if plan.suggestion else lines
