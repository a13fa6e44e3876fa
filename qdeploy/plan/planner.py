"""From a request to a plan: every layout's memory by part, the choice, the way out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from qdeploy.core.errors import InputError
from qdeploy.core.units import format_bytes
from qdeploy.models.shape import ModelShape
from qdeploy.plan.accounting import Accounting, find_accounting, shown
from qdeploy.plan.choice import choice_reason, choose, second_best
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy, layouts
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.schema import Candidate, PerGpu, Plan, PlannedModel
from qdeploy.plan.step_time import step_seconds
from qdeploy.plan.suggestion import suggest
from qdeploy.plan.terms.host import (
    host_bytes,
    host_init_bytes,
    host_pinned_bytes,
    nvme_bytes,
)

_BASIS_NOTES = {
    "allocated": "basis allocated: tensors only (torch.cuda.max_memory_allocated)",
    "reserved": "basis reserved: with the slack of PyTorch's allocator "
    "(torch.cuda.max_memory_reserved)",
    "device": "basis device: with CUDA context and NCCL, as nvidia-smi shows it",
}


@dataclass(frozen=True)
class _Sized:
    """A layout with its micro-batch, its parts on the device basis, and the verdict."""

    job: Job
    layout: Layout
    on_device: PerGpu
    fits: bool
    reason: str


def plan(request: PlanRequest) -> Plan:
    """Plan `request`.

    Raises InputError or UnknownNameError for names that are not there and for choices that do not
    go together.
    """
    name = _accounting_name(request)
    accounting = find_accounting(name)
    job = make_job(request)
    candidates = _candidates(job, accounting, _possible_layouts(job, accounting, name))
    chosen = choose(candidates, job.world)
    if chosen is not None:
        reason = choice_reason(chosen, candidates, job.world)
        better = chosen.model_copy(update={"reason": reason})
        candidates = [better if c is chosen else c for c in candidates]
        chosen = better
    suggestions = [] if chosen else suggest(request, _fits)
    return Plan(
        inputs=job.inputs,
        model=PlannedModel(
            name=job.shape.name,
            parameters=job.parameters,
            trainable_parameters=job.trainable,
            shape=job.shape,
        ),
        request=replace(request, model=_named(request, job)),
        accounting=name,
        gpu=job.gpu,
        capacity_bytes=accounting.capacity_bytes(job),
        candidates=candidates,
        chosen=chosen,
        second_best=second_best(chosen, candidates, job.world) if chosen else None,
        suggestion=f"the smallest change that fits: {suggestions[0]}" if suggestions else None,
        other_suggestions=suggestions[1:],
        precision=job.precision,
        notes=[accounting.NOTE, _BASIS_NOTES[request.basis]],
        warnings=_warnings(job, chosen),
    )


def _named(request: PlanRequest, job: Job) -> str:
    """The model as it was asked for; of a folder its name alone, for plans are passed around."""
    if isinstance(request.model, ModelShape) or Path(request.model).expanduser().is_dir():
        return job.shape.name
    return str(request.model)


def _accounting_name(request: PlanRequest) -> str:
    """As asked for, else of the framework that runs the strategy."""
    if request.accounting is not None:
        return request.accounting
    strategy = request.strategy
    fsdp = strategy is not None and find_strategy(strategy).engine == "fsdp"
    return "torch" if fsdp else "deepspeed"


def _fits(request: PlanRequest) -> bool:
    """Whether anything fits `request`; a request that cannot be does not."""
    name = _accounting_name(request)
    accounting = find_accounting(name)
    try:
        job = make_job(request)
        possible = _possible_layouts(job, accounting, name)
        return any(_sized(job, accounting, layout).fits for layout in possible)
    except InputError:
        return False


def fits_layout(job: Job, accounting: Accounting, layout: Layout) -> bool:
    """Whether `layout` fits `job` as it is: GPU, and host and NVMe where they are given."""
    return _size(job, accounting, layout).fits


def _possible_layouts(job: Job, accounting: Accounting, name: str) -> list[Layout]:
    """The layouts to plan; those that were not asked for by name and cannot be are left out."""
    request = job.request
    if request.strategy is not None:
        strategies = [find_strategy(request.strategy)]
        if request.strategy not in accounting.STRATEGIES:
            raise InputError(
                f"accounting {name} does not know strategy {request.strategy}",
                hint=f"it knows: {', '.join(accounting.STRATEGIES)}",
            )
    else:
        known = [find_strategy(strategy) for strategy in accounting.STRATEGIES]
        strategies = [strategy for strategy in known if strategy.offered]
    every = layouts(strategies, request)
    possible = []
    refusal: InputError | None = None
    for layout in every:
        if request.strategy is None and _pointless(job, layout):
            continue
        try:
            accounting.check(job, layout)
        except InputError as error:
            refusal = error
        else:
            possible.append(layout)
    if not possible and refusal is not None:
        raise refusal
    return possible


def _pointless(job: Job, layout: Layout) -> bool:
    """ZeRO on one GPU shards nothing; only its offload helps."""
    return job.world == 1 and layout.strategy.engine == "deepspeed" and layout.offload == "none"


def _sized(job: Job, accounting: Accounting, layout: Layout) -> _Sized:
    """The layout with the asked micro-batch, or with the largest one that fits."""
    request = job.request
    if request.micro_batch is not None or request.global_batch is None:
        return _size(job, accounting, layout)
    sized = None
    for micro_batch in _micro_batches(request.global_batch // request.data_parallel):
        changed = replace(job, request=replace(request, micro_batch=micro_batch))
        sized = _size(changed, accounting, layout)
        if sized.fits:
            break
    assert sized is not None
    return sized


def _micro_batches(sequences: int) -> list[int]:
    """Into which micro-batches `sequences` divide evenly, the largest first."""
    return [size for size in range(sequences, 0, -1) if sequences % size == 0]


def _size(job: Job, accounting: Accounting, layout: Layout) -> _Sized:
    unit = accounting.UNIT
    on_device = accounting.per_gpu(job, layout, "device")
    capacity = accounting.capacity_bytes(job)
    fits = accounting.need_bytes(on_device) <= capacity
    total, room = shown(on_device.total_bytes, unit), shown(capacity, unit)
    if fits:
        left = 100 * (capacity - on_device.total_bytes) // capacity
        reason = f"{total} of {room} a GPU, {left} % left"
    elif on_device.low_bytes <= capacity:
        reason = (
            f"marginal: {total} of {room}, expected between {shown(on_device.low_bytes, unit)} "
            f"and {shown(on_device.high_bytes, unit)}"
        )
    else:
        reason = f"too large: {total}, the GPU has {room}"
    for place, need, limit in _outside_gpu(job, layout):
        if fits and limit is not None and need > limit:
            fits = False
            reason = f"the {place} needs {shown(need, unit)}, it has {shown(limit, unit)}"
    return _Sized(job, layout, on_device, fits, reason)


def _outside_gpu(job: Job, layout: Layout) -> list[tuple[str, int, int | None]]:
    """(place, need in bytes, what there is) of the host and the NVMe."""
    host = max(host_bytes(job, layout), host_init_bytes(job, layout))
    request = job.request
    return [
        ("host", host, request.host_memory_bytes),
        ("NVMe", nvme_bytes(job, layout), request.nvme_bytes),
    ]


def _candidates(job: Job, accounting: Accounting, possible: list[Layout]) -> list[Candidate]:
    every = [_sized(job, accounting, layout) for layout in possible]
    # The time of a step for each sequence of its batch: micro-batches may differ.
    seconds = [
        step_seconds(sized.job, sized.layout) / (sized.job.accumulation * sized.job.micro_batch)
        for sized in every
    ]
    fastest = min(seconds)
    return [
        _candidate(sized, accounting, round(time / fastest, 3))
        for sized, time in zip(every, seconds, strict=True)
    ]


def _candidate(sized: _Sized, accounting: Accounting, relative_step_time: float) -> Candidate:
    job, layout, basis = sized.job, sized.layout, sized.job.request.basis
    on_device = sized.on_device
    return Candidate(
        strategy=layout.strategy.name,
        offload=layout.offload,
        checkpointing=layout.checkpointing,
        micro_batch=job.micro_batch,
        accumulation_steps=job.accumulation,
        fits=sized.fits,
        per_gpu=on_device if basis == "device" else accounting.per_gpu(job, layout, basis),
        host_bytes=host_bytes(job, layout),
        host_pinned_bytes=host_pinned_bytes(job, layout),
        host_init_bytes=host_init_bytes(job, layout),
        nvme_bytes=nvme_bytes(job, layout),
        relative_step_time=relative_step_time,
        reason=sized.reason,
    )


def _warnings(job: Job, chosen: Candidate | None) -> list[str]:
    found = []
    request, shape = job.request, job.shape
    if request.precision.startswith("bf16") and job.precision.dtype != "bf16":
        found.append(job.precision.reason)
    if request.seq_len > shape.max_positions:
        found.append(
            f"{request.seq_len} tokens are more than the {shape.max_positions} positions that "
            f"{shape.name} was made for"
        )
    if chosen is not None and request.host_memory_bytes is None:
        need = max(chosen.host_bytes, chosen.host_init_bytes)
        if chosen.offload != "none":
            found.append(
                f"the host of each node needs about {format_bytes(need)}; give --host-memory to "
                "have it judged"
            )
    return found
