"""A plan's request, traced: what the model class keeps, beside what the formulas say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdeploy.core.errors import InputError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.units import format_bytes
from qdeploy.models.family import model_type
from qdeploy.models.source import read_config
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.terms.activations import block_run
from qdeploy.trace.activations import NumberType, TracedActivations, TraceRun, trace
from qdeploy.trace.adapters import Adapters
from qdeploy.trace.config import config_of

if TYPE_CHECKING:
    from rich.table import Table

_TYPES: dict[str, NumberType] = {"bf16": "bf16", "bf16-pure": "bf16", "fp16": "fp16"}


@dataclass(frozen=True)
class TracedModel:
    """What the model class keeps for one micro-batch on one GPU, in bytes."""

    model: str
    run: str
    """Batch, number types and attention, in words."""
    tokens: int
    parameters: int
    layers: int
    blocks_bytes: int
    """Kept by all blocks, without checkpointing."""
    last_block_bytes: int
    outside_bytes: int
    """Kept before and behind the blocks, logits left out."""
    logits_bytes: int
    """Kept of the logits before the loss, such as by a softcap; the loss is not traced."""
    working_bytes: int
    """What the backward pass needs at its peak beyond all that is kept."""
    formula_block_bytes: int | None
    """The last block by the trainer's formula; None for an architecture without a family."""
    by_module: dict[str, int]
    """Kept by each module of the last block."""


def trace_request(request: PlanRequest) -> TracedModel:
    """Trace the model of `request` with one micro-batch.

    Only activations are traced: strategies, parallelism and checkpointing are the formulas' part.
    Raises InputError for another trainer than `hf`, for adapters on an architecture without a
    family, and where transformers has no class for the model.
    """
    if request.trainer != "hf":
        raise InputError(
            f"--trace runs the classes of transformers, not those of {request.trainer}",
            hint="leave out --trainer, or --trace",
        )
    folder = Path(request.model).expanduser() if isinstance(request.model, str | Path) else None
    config = read_config(folder) if folder is not None and folder.is_dir() else None
    if config is not None and model_type(config) not in plugin_names("qdeploy.models.families"):
        name = folder.resolve().name if folder is not None else ""
        return _report(name, trace(config, _unknown_run(request)), _unknown_run(request), None)
    job = make_job(request)
    layout = Layout(find_strategy(_strategy(request)), "none", checkpointing=False)
    moe = job.shape.moe_layers > 0
    known = block_run(job, layout, "none", moe=moe)
    run = _run(request, job, known)
    traced = trace(config if config is not None else config_of(job.shape), run)
    formula = saved_bytes(known, job.trainer.block(known), tensor=1, sequence=1)
    return _report(job.shape.name, traced, run, formula * run.batch * run.seq_len)


def trace_table(traced: TracedModel) -> Table:
    """The trace as a table."""
    from rich.table import Table

    table = Table(title=f"{traced.model}: {traced.run}", title_justify="left")
    table.add_column("kept by")
    table.add_column("bytes", justify="right")
    for module, size in traced.by_module.items():
        table.add_row(f"last block, {module}", format_bytes(size))
    table.add_section()
    table.add_row("last block", format_bytes(traced.last_block_bytes))
    if traced.formula_block_bytes is not None:
        table.add_row("last block, by formula", format_bytes(traced.formula_block_bytes))
    table.add_row(f"all {traced.layers} blocks", format_bytes(traced.blocks_bytes))
    table.add_row("outside the blocks, without logits", format_bytes(traced.outside_bytes))
    if traced.logits_bytes:
        table.add_row("of the logits before the loss", format_bytes(traced.logits_bytes))
    table.add_row("gradients of activations at the peak", format_bytes(traced.working_bytes))
    table.add_row("parameters", f"{traced.parameters:,}")
    return table


def _strategy(request: PlanRequest) -> str:
    return request.strategy or ("none" if request.world == 1 else "zero2")


def _run(request: PlanRequest, job: Job, known: BlockRun) -> TraceRun:
    compute = job.precision.dtype
    wide = known.autocast and not known.quantized_base
    adapters = None
    if job.peft is not None:
        adapters = Adapters(
            rank=request.lora_rank,
            targets=known.adapted,
            dropout=0.1 if known.lora_dropout else 0.0,
            quantized=known.quantized_base,
        )
    return TraceRun(
        batch=job.micro_batch,
        seq_len=request.seq_len,
        weights="fp32" if wide and known.residual_bytes == 4 else compute,
        autocast=compute if known.autocast else None,
        attention=request.attention,
        padded=known.padded,
        adapters=adapters,
        sdpa_flash=known.sdpa_flash,
    )


def _unknown_run(request: PlanRequest) -> TraceRun:
    """For an architecture without a family, by the rules of full training."""
    if request.peft is not None:
        raise InputError(
            "adapters on an architecture that qdeploy does not know are not traced",
            hint="trace full training: leave out --peft",
        )
    compute = _TYPES.get(request.precision)
    layout = Layout(find_strategy(_strategy(request)), "none", checkpointing=False)
    casts = compute is not None and layout.casts_weights and request.precision != "bf16-pure"
    batch = request.micro_batch or 1
    return TraceRun(
        batch=batch,
        seq_len=request.seq_len,
        weights="fp32" if casts or compute is None else compute,
        autocast=compute if casts else None,
        attention=request.attention,
        padded=batch > 1 and not request.packing,
    )


def _report(
    name: str, traced: TracedActivations, run: TraceRun, formula: int | None
) -> TracedModel:
    last = len(traced.blocks) - 1
    modules: Counter[str] = Counter()
    for kept in traced.kept:
        if kept.block == last:
            modules[kept.module_in_block] += kept.bytes
    return TracedModel(
        model=name,
        run=_words(run),
        tokens=run.batch * run.seq_len,
        parameters=traced.parameters,
        layers=len(traced.blocks),
        blocks_bytes=sum(traced.blocks),
        last_block_bytes=traced.blocks[-1],
        outside_bytes=traced.outside_bytes,
        logits_bytes=traced.logits_bytes,
        working_bytes=traced.working_bytes,
        formula_block_bytes=formula,
        by_module=dict(modules),
    )


def _words(run: TraceRun) -> str:
    numbers = f"{run.weights} weights" + (f", autocast {run.autocast}" if run.autocast else "")
    batch = f"{run.batch} x {run.seq_len} tokens" + (", padded" if run.padded else "")
    adapters: Any = run.adapters
    kind = f", {'QLoRA' if adapters.quantized else 'LoRA'} rank {adapters.rank}" if adapters else ""
    return f"{batch}, {numbers}{kind}, {run.attention} attention"
