"""From a request to a plan: every layout's memory by part, the choice, the way out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qdeploy.core.errors import InputError
from qdeploy.core.units import format_bytes
from qdeploy.plan.accounting import Accounting, find_accounting, shown
from qdeploy.plan.choice import choice_reason, choose
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy, layouts
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.schema import Candidate, PerGpu, Plan, PlannedModel
from qdeploy.plan.step_time import step_seconds
from qdeploy.plan.suggestion import suggest
from qdeploy.plan.terms.host import host_bytes, host_init_bytes, nvme_bytes

_BASIS_NOTES = {
    "allocated": "basis allocated: tensors only (torch.cuda.max_memory_allocated)",
    "reserved": "basis reserved: with the slack of PyTorch's allocator "
    "(torch.cuda.max_memory_reserved)",
    "device": "basis device: with CUDA context and NCCL, as nvidia-smi shows it",
}


@dataclass(frozen=True)
class _Sized:
    """A layout, its parts on the asked basis, and the verdict."""

    layout: Layout
    parts: PerGpu
    fits: bool
    reason: str


def plan(request: PlanRequest) -> Plan:
    """Plan `request`.

    Raises InputError or UnknownNameError for names that are not there and for choices that do not
    go together.
    """
    name = request.accounting or ("torch" if request.strategy == "fsdp" else "deepspeed")
    accounting = find_accounting(name)
    job = make_job(request)
    candidates = _candidates(job, accounting, _possible_layouts(job, accounting, name))
    chosen = choose(candidates, job.world)
    if chosen is not None:
        reason = choice_reason(chosen, candidates, job.world)
        better = chosen.model_copy(update={"reason": reason})
        candidates = [better if c is chosen else c for c in candidates]
        chosen = better
    return Plan(
        inputs=job.inputs,
        model=PlannedModel(
            name=job.shape.name,
            parameters=job.parameters,
            trainable_parameters=job.trainable,
            shape=job.shape,
        ),
        request=replace(request, model=job.shape.name),
        accounting=name,
        gpu=job.gpu,
        capacity_bytes=accounting.capacity_bytes(job),
        candidates=candidates,
        chosen=chosen,
        suggestion=None if chosen else suggest(request, _fits),
        precision=job.precision,
        notes=[accounting.NOTE, _BASIS_NOTES[request.basis]],
        warnings=_warnings(job, chosen),
    )


def _fits(request: PlanRequest) -> bool:
    """Whether anything fits `request`; a request that cannot be does not."""
    name = request.accounting or "deepspeed"
    accounting = find_accounting(name)
    try:
        job = make_job(request)
        possible = _possible_layouts(job, accounting, name)
    except InputError:
        return False
    return any(_size(job, accounting, layout).fits for layout in possible)


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
        strategies = [find_strategy(strategy) for strategy in accounting.STRATEGIES]
    every = layouts(
        strategies,
        world=job.world,
        offload=request.offload,
        checkpointing=request.checkpointing,
    )
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
    limit = job.request.host_memory_bytes
    host = max(host_bytes(job, layout), host_init_bytes(job, layout))
    if fits and limit is not None and host > limit:
        fits = False
        reason = f"the host needs {shown(host, unit)}, it has {shown(limit, unit)}"
    return _Sized(layout, accounting.per_gpu(job, layout, job.request.basis), fits, reason)


def _candidates(job: Job, accounting: Accounting, possible: list[Layout]) -> list[Candidate]:
    seconds = [step_seconds(job, layout) for layout in possible]
    return [
        Candidate(
            strategy=sized.layout.strategy.name,
            offload=sized.layout.offload,
            checkpointing=sized.layout.checkpointing,
            micro_batch=job.request.micro_batch,
            fits=sized.fits,
            per_gpu=sized.parts,
            host_bytes=host_bytes(job, sized.layout),
            host_init_bytes=host_init_bytes(job, sized.layout),
            nvme_bytes=nvme_bytes(job, sized.layout),
            relative_step_time=round(time / min(seconds), 3),
            reason=sized.reason,
        )
        for sized, time in zip(
            (_size(job, accounting, layout) for layout in possible), seconds, strict=True
        )
    ]


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
