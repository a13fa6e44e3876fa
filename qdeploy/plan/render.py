"""A plan as tables for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qdeploy.core.console import results
from qdeploy.core.units import GB, GIB, format_bytes
from qdeploy.plan.accounting import find_accounting, shown
from qdeploy.plan.schema import PARTS, Candidate, Plan
from qdeploy.plan.trainers import find_trainer

if TYPE_CHECKING:
    from qdeploy.plan.lint.case import Finding

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
    if request.micro_batch is None:
        sizes = f"global batch {request.global_batch} x {request.seq_len} tokens"
    else:
        sizes = f"micro-batch {request.micro_batch} x {request.seq_len} tokens"
    loss = request.loss or find_trainer(request.trainer).TRAITS.loss
    kernels = f"{request.optimizer}, {request.attention} attention, {loss} loss"
    if request.trainer != "hf":
        kernels += f", {request.trainer}"
    formats = f"{plan.precision.dtype.upper()}{scaling}, Adam eps {plan.precision.adam_eps:g}"
    return [
        f"{model.name}: {model.parameters:,} parameters{adapters}, on {gpus}",
        f"{sizes}, {kernels}, {formats}",
    ]


def _table(plan: Plan) -> Table:
    unit = find_accounting(plan.accounting).UNIT
    scale = GIB if unit == "GiB" else GB
    table = Table(title=f"Memory of one GPU in {unit}", box=None, padding=(0, 1, 0, 0))
    chosen_sizes = plan.request.micro_batch is None
    for heading in ("strategy", "offload", "ckpt", *(["micro"] if chosen_sizes else [])):
        table.add_column(heading, no_wrap=True)
    for heading in (*_HEADINGS.values(), "total", "low-high", "peak", "host", "time"):
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
        *([str(candidate.micro_batch)] if plan.request.micro_batch is None else []),
        *(f"{size:.1f}" for size in sizes),
        f"{candidate.per_gpu.total_bytes / scale:.1f}",
        f"{low:.0f}-{high:.0f}",
        candidate.per_gpu.peak,
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
        lines = [f"take {_words(chosen, plan)}: {chosen.reason}."]
        second = plan.second_best
        return lines + (
            [f"second best, {_words(second, plan)}: {second.reason}."] if second else []
        )
    closest = min(plan.candidates, key=lambda c: c.per_gpu.total_bytes)
    lines = [f"nothing fits; the smallest is {closest.strategy}: {closest.reason}."]
    if plan.suggestion:
        others = "".join(f"; or {other}" for other in plan.other_suggestions)
        lines.append(f"{plan.suggestion}{others}.")
    return lines


def _words(candidate: Candidate, plan: Plan) -> str:
    offload = {
        "none": "", "optimizer": " with the optimizer on the host",
        "all": " with weights and optimizer on the host", "nvme": " with everything on NVMe",
    }[candidate.offload]  # fmt: skip
    way = "with" if candidate.checkpointing else "without"
    batch = ""
    if plan.request.global_batch is not None:
        batch = (
            f", micro-batches of {candidate.micro_batch}, "
            f"{candidate.accumulation_steps} accumulated"
        )
    return f"{candidate.strategy}{offload}, {way} checkpointing{batch}"


def findings_table(findings: Sequence[Finding], name: str) -> RenderableType:
    """What a DeepSpeed JSON costs and what is wrong with it, one row a finding."""
    if not findings:
        return Text(f"{name}: nothing to say")
    table = Table(title=name, box=None, padding=(0, 1, 0, 0))
    for heading in ("", "setting", "costs", "what, and what to do"):
        table.add_column(heading, overflow="fold")
    styles = {"error": "bold red", "warning": "yellow", "note": ""}
    for finding in findings:
        cost = "" if finding.cost_bytes is None else format_bytes(finding.cost_bytes)
        advice = "" if finding.advice is None else f" Advice: {_sentence(finding.advice)}"
        table.add_row(
            Text(finding.severity, style=styles[finding.severity]),
            Text(finding.key),
            Text(cost),
            Text(_sentence(finding.message) + advice),
        )
    return table


def _sentence(text: str) -> str:
    return text if text.endswith(("?", "!", ".")) else f"{text}."
