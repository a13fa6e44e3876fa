"""One ledger of the whole way: will it work on these machines, and where is it tightest?

Training as the plan chooses it, then quantizing, evaluating and serving the same model on the same
GPUs, one stage after the other: device memory, host memory and disk, each with its interval.
"""

from __future__ import annotations

from dataclasses import replace

from qdeploy.core.errors import InputError
from qdeploy.plan.gpu import find_gpu
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.ledger.evaluating import evaluating
from qdeploy.plan.ledger.machine import Machine
from qdeploy.plan.ledger.quantizing import quantizing
from qdeploy.plan.ledger.render import ledger_table
from qdeploy.plan.ledger.schema import Ledger, Need, Place, Stage, Tightest
from qdeploy.plan.ledger.served import serving
from qdeploy.plan.ledger.training import training
from qdeploy.plan.ledger.verdict import tightest, verdict, works
from qdeploy.plan.planner import plan
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.schema import Plan
from qdeploy.plan.serving import ServingTarget, require_generation
from qdeploy.plan.terms.framework import CONTEXT_BYTES

__all__ = [
    "Ledger",
    "Need",
    "Place",
    "ServingTarget",
    "Stage",
    "Tightest",
    "ledger",
    "ledger_table",
]


def ledger(
    request: PlanRequest,
    target: ServingTarget | None = None,
    *,
    disk_bytes: int | None = None,
    kept_checkpoints: int = 2,
) -> Ledger:
    """What each stage needs, beside the GPUs of `request`, its host memory and `disk_bytes`.

    `target`: the load of serving, by default 16 requests of `request.seq_len` tokens on the same
    GPUs; with `target.gpu` on that one, in a node with as much host memory and disk. `disk_bytes`:
    space for weights, checkpoints and results; None: not judged. `kept_checkpoints`: as the
    trainer's save_total_limit; 0: none are saved. Raises InputError or UnknownNameError as `plan`
    does, and for a model that generates no text.
    """
    if disk_bytes is not None and disk_bytes < 1:
        raise InputError(f"disk_bytes must be at least 1, found {disk_bytes}")
    if kept_checkpoints < 0:
        raise InputError(f"kept_checkpoints must not be negative, found {kept_checkpoints}")
    target = target or ServingTarget(context=request.seq_len)
    job = make_job(request)
    require_generation(job.shape)
    planned = plan(replace(request, basis="device"))
    machine = _machine(job, disk_bytes)
    server = _server(machine, target)
    stages = [
        training(planned, job, machine, kept_checkpoints),
        quantizing(machine),
        evaluating(machine),
        *(serving(server, form, target) for form in target.served_as),
    ]
    return Ledger(
        inputs=planned.inputs,
        model=job.shape.name,
        parameters=job.parameters,
        gpu=job.gpu.name,
        gpus=request.gpus,
        nodes=request.nodes,
        target=target,
        stages=stages,
        works=works(stages),
        tightest=tightest(stages),
        verdict=verdict(stages),
        notes=_notes(target),
        warnings=[*planned.warnings, *_warnings(planned, job, target)],
    )


def _machine(job: Job, disk_bytes: int | None) -> Machine:
    """The node that trains, quantizes and evaluates."""
    request = job.request
    return Machine(
        shape=job.shape,
        parameters=job.parameters,
        gpu=job.gpu,
        gpus=request.gpus,
        host_bytes=request.host_memory_bytes,
        disk_bytes=disk_bytes,
        occupied_bytes=request.occupied_bytes,
        context_bytes=CONTEXT_BYTES if request.context_bytes is None else request.context_bytes,
    )


def _server(machine: Machine, target: ServingTarget) -> Machine:
    """The node that serves: the same one, or one with other GPUs and as much host and disk."""
    if target.gpu is None:
        return machine
    gpu, _ = find_gpu(target.gpu)
    return replace(machine, gpu=gpu, gpus=target.count, occupied_bytes=0)


def _notes(target: ServingTarget) -> list[str]:
    held = (
        f"serving is held against {target.memory_percent} % of a GPU (gpu_memory_utilization), "
        "everything else against all that CUDA reports"
    )
    return [held, "stages run one after the other: their needs do not add up"]


def _warnings(planned: Plan, job: Job, target: ServingTarget) -> list[str]:
    found, shape = [], job.shape
    if planned.suggestion is not None:
        found.append(f"training: {planned.suggestion}")
    if target.context > shape.max_positions:
        found.append(
            f"requests of {target.context} tokens are longer than the {shape.max_positions} "
            f"positions that {shape.name} was made for"
        )
    if shape.experts and not target.quantized_experts and target.served_as != ("bf16",):
        found.append(
            "qdeploy quantize leaves experts in 16 bits, so the quantized form saves little"
        )
    return found
