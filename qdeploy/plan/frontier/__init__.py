"""The largest micro-batch for each sequence length, and the longest sequence for each micro-batch.

Of one layout: the plan's choice, or, when nothing fits, the one that needs the least memory; each
with and without checkpointing, at the same number of micro-batches a step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from qdeploy.plan.accounting import find_accounting
from qdeploy.plan.frontier.render import frontier_table
from qdeploy.plan.frontier.schema import Curve, Frontier, Point
from qdeploy.plan.frontier.search import Search, Sizes
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.planner import plan
from qdeploy.plan.request import Offload, PlanRequest
from qdeploy.plan.schema import Candidate

__all__ = ["Curve", "Frontier", "Point", "frontier", "frontier_table"]

_SHORTEST = 256
_LONGEST = 1 << 20
_MOST_ROWS = 256
_STEP = 64


def frontier(request: PlanRequest) -> Frontier:
    """What fits of the layout that `plan` chooses for `request`, or that `request` fixes.

    Raises InputError or UnknownNameError as `plan` does.
    """
    planned = plan(request)
    candidate = planned.chosen or min(planned.candidates, key=lambda c: c.per_gpu.need_bytes)
    job = make_job(_repeatable(request, candidate))
    curves = _curves(job, planned.accounting, candidate)
    return Frontier(
        inputs=planned.inputs,
        model=planned.model.name,
        gpu=planned.gpu.name,
        gpus=job.world,
        strategy=candidate.strategy,
        offload=candidate.offload,
        accumulation_steps=job.accumulation,
        asked_micro_batch=candidate.micro_batch,
        asked_seq_len=request.seq_len,
        asked_checkpointing=candidate.checkpointing,
        asked_fits=candidate.fits,
        max_positions=job.shape.max_positions,
        step=_step(job),
        curves=curves,
    )


def _repeatable(request: PlanRequest, candidate: Candidate) -> PlanRequest:
    """`request` with a step of as many micro-batches as `candidate` has, whatever their size."""
    return replace(
        request,
        micro_batch=1,
        global_batch=None,
        accumulation_steps=candidate.accumulation_steps,
    )


def _curves(job: Job, accounting_name: str, candidate: Candidate) -> list[Curve]:
    accounting, strategy = find_accounting(accounting_name), find_strategy(candidate.strategy)
    offload = cast("Offload", candidate.offload)
    lengths, rows = _lengths(job), _rows(candidate.micro_batch)
    found: list[tuple[Search, list[Sizes], list[Sizes]]] = []
    for checkpointing in (True, False):
        search = Search(job, accounting, Layout(strategy, offload, checkpointing))
        by_rows = search.by_micro_batch(rows, _longest(job), _step(job))
        found.append((search, search.by_seq_len(lengths), by_rows))
    times = {
        (search.layout.checkpointing, sizes): search.token_seconds(sizes)
        for search, *lists in found
        for sizes in (*lists[0], *lists[1])
        if sizes.seq_len and sizes.micro_batch
    }
    fastest = min(times.values(), default=1.0)

    def point(checkpointing: bool, sizes: Sizes) -> Point:
        time = times.get((checkpointing, sizes))
        relative = None if time is None else round(time / fastest, 3)
        return Point(**sizes._asdict(), relative_token_time=relative)

    return [
        Curve(
            checkpointing=search.layout.checkpointing,
            by_seq_len=[point(search.layout.checkpointing, sizes) for sizes in by_length],
            by_micro_batch=[point(search.layout.checkpointing, sizes) for sizes in by_rows],
        )
        for search, by_length, by_rows in found
    ]


def _lengths(job: Job) -> list[int]:
    """Doubling from 256 to the model's positions, these, and the length that is asked for."""
    end = min(job.shape.max_positions, _LONGEST)
    found = {end, job.request.seq_len}
    length = _SHORTEST
    while length < end:
        found.add(length)
        length *= 2
    # Context parallelism divides sequences evenly.
    degree = job.request.context_parallel
    return sorted({max(degree, length - length % degree) for length in found})


def _rows(asked: int) -> list[int]:
    """Micro-batches: doubling from 1, and the one that is asked for."""
    return sorted({1 << power for power in range(_MOST_ROWS.bit_length())} | {asked})


def _longest(job: Job) -> int:
    """Where the search for the longest sequence ends.

    A table of learned positions has no more rows; other positions can be stretched.
    """
    positions = job.shape.max_positions
    return positions if job.shape.learned_positions else min(4 * positions, _LONGEST)


def _step(job: Job) -> int:
    """Tokens to which the longest sequence is exact."""
    step = _STEP if _longest(job) >= _STEP else 1
    return math.lcm(step, job.request.context_parallel)
