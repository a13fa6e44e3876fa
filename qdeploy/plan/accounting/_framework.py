"""What `deepspeed` and `torch` share: the peak moment, the interval around it, what it needs."""

from __future__ import annotations

from dataclasses import replace

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.moments import moments
from qdeploy.plan.rank import Stage
from qdeploy.plan.request import Basis
from qdeploy.plan.schema import PerGpu
from qdeploy.plan.terms.framework import device_bytes, fragments_bytes, slack_bytes

# Part -> (share that may be missing, share that may come on top), in percent. States are known
# to the byte but for alignment; the rest from the spread of public measurements (see terms).
_SPREAD = {
    "weights": (0, 1),
    "master_weights": (0, 1),
    "gradients": (0, 1),
    "optimizer": (0, 1),
    "activations": (15, 5),
    "logits": (15, 5),
    "buffers": (60, 25),
}
# ZeRO-3 gathers and frees every weight for itself, and which ones are live together depends on the
# order in which it traced them.
_ZERO3_BUFFERS_ABOVE = 50
_SLACK_SPREAD = (80, 100)
_DEVICE_SPREAD = (30, 30)


def per_gpu(job: Job, layout: Layout, basis: Basis) -> PerGpu:
    """All parts at the peak on `basis`, their sum and its interval; of a pipeline's fuller end."""
    pipeline = job.request.pipeline_parallel > 1
    stages: tuple[Stage, ...] = ("first", "last") if pipeline else ("only",)
    sized = [_stage(replace(job, stage=stage), layout, basis) for stage in stages]
    return max(sized, key=lambda parts: parts.total_bytes)


def need_bytes(parts: PerGpu) -> int:
    """What must be free for the layout to fit."""
    return parts.need_bytes


def _stage(job: Job, layout: Layout, basis: Basis) -> PerGpu:
    every = moments(job, layout)
    moment = max(every, key=lambda name: sum(every[name].values()))
    parts = every[moment]
    workspace, device = job.traits.workspace_bytes, device_bytes(job)
    allocated = sum(parts.values()) + workspace
    slack = 0 if basis == "allocated" else slack_bytes(job, layout, allocated, _dynamic(parts))
    beside = device if basis == "device" else 0
    missing = sum(size * _SPREAD[part][0] // 100 for part, size in parts.items())
    missing += (slack * _SLACK_SPREAD[0] + beside * _DEVICE_SPREAD[0]) // 100
    # States in unified memory may spill to the host.
    missing += parts["optimizer"] if job.optimizer.paged else 0
    above = _more(parts, layout)
    above += (slack * _SLACK_SPREAD[1] + beside * _DEVICE_SPREAD[1]) // 100
    total = allocated + slack + beside
    # The moment with the most may not be the one that needs the most: spreads differ.
    needs = [
        sum(found.values()) + _more(found, layout) + fragments_bytes(_dynamic(found))
        for found in every.values()
    ]
    need = max(needs) + workspace + device * (100 + _DEVICE_SPREAD[1]) // 100
    sizes = {f"{part}_bytes": size for part, size in parts.items()}
    return PerGpu(
        **sizes,
        framework_bytes=workspace + slack + beside,
        peak=moment,
        total_bytes=total,
        low_bytes=max(0, total - missing),
        high_bytes=total + above,
        need_bytes=need,
    )


def _dynamic(parts: dict[str, int]) -> int:
    """What comes and goes in a step."""
    return parts["activations"] + parts["logits"] + parts["buffers"]


def _more(parts: dict[str, int], layout: Layout) -> int:
    """What may come on top of `parts`."""
    return sum(size * _above(part, layout) // 100 for part, size in parts.items())


def _above(part: str, layout: Layout) -> int:
    """The percentage that may come on top of `part`."""
    if part == "buffers" and layout.deepspeed and layout.shards_weights:
        return _ZERO3_BUFFERS_ABOVE
    return _SPREAD[part][1]
