"""Bisection for the largest sizes that fit one layout.

Need grows with sequences and with their length, so each point lies below the point before it.
Where the peak moves to another moment of the step, what must be free can fall for one step of the
search; a size found there fits, though one beyond the next may fit too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from qdeploy.plan.accounting import Accounting
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.planner import fits_layout
from qdeploy.plan.step_time import step_seconds

MOST_SEQUENCES = 1 << 12


class Sizes(NamedTuple):
    """A micro-batch; one of the sizes is 0 where none fits."""

    seq_len: int
    micro_batch: int
    at_limit: bool
    """The end of the search stopped it, not the memory."""


@dataclass(frozen=True)
class Search:
    """One layout of a run."""

    job: Job
    accounting: Accounting
    layout: Layout

    def by_seq_len(self, lengths: list[int]) -> list[Sizes]:
        """The largest micro-batch for each of the rising `lengths`."""
        found, most = [], MOST_SEQUENCES
        for length in lengths:
            most = _largest(lambda size, n=length: self.fits(n, size), most)  # type: ignore[misc]
            found.append(Sizes(length, most, most == MOST_SEQUENCES))
        return found

    def by_micro_batch(self, sizes: list[int], longest: int, step: int) -> list[Sizes]:
        """The longest sequence, in steps of `step` up to `longest`, for each of the rising
        `sizes`."""
        found, limit = [], longest // step
        steps = limit
        for size in sizes:
            steps = _largest(lambda n, b=size: self.fits(n * step, b), steps)  # type: ignore[misc]
            found.append(Sizes(steps * step, size, steps == limit))
        return found

    def fits(self, seq_len: int, micro_batch: int) -> bool:
        """Whether a micro-batch of these sizes fits."""
        return fits_layout(self._job(seq_len, micro_batch), self.accounting, self.layout)

    def token_seconds(self, sizes: Sizes) -> float:
        """Modelled time of a step for each token of it on one GPU."""
        job = self._job(sizes.seq_len, sizes.micro_batch)
        return step_seconds(job, self.layout) / (job.accumulation * job.tokens)

    def _job(self, seq_len: int, micro_batch: int) -> Job:
        request = replace(self.job.request, seq_len=seq_len, micro_batch=micro_batch)
        return replace(self.job, request=request)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest of 1..most that fits, 0 for none."""
    low, high = 0, most
    if most and fits(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
