"""The plan that a log is held against, and what it says the run should have changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from qdeploy.core.units import format_bytes
from qdeploy.plan.oom.schema import OomReport, Part
from qdeploy.plan.planner import plan
from qdeploy.plan.request import Offload, PlanRequest
from qdeploy.plan.schema import PARTS, Candidate, Plan

_OFFLOAD: TypeAdapter[Offload] = TypeAdapter(Offload)
_PART: TypeAdapter[Part] = TypeAdapter(Part)
# How `suggestion` says that another strategy or offload would do, without naming it.
_OTHER_LAYOUT = "no --strategy and no --offload"
_RUNNING = ("forward", "backward", "step")


@dataclass(frozen=True)
class Planned:
    """A plan, and the one of its candidates that the run is taken for."""

    request: PlanRequest
    plan: Plan
    candidate: Candidate
    assumed: bool
    """The request left the layout open."""

    @property
    def layout(self) -> str:
        """The candidate in words."""
        one = self.candidate
        place = "" if one.offload == "none" else f" with offload {one.offload}"
        way = "with" if one.checkpointing else "without"
        return f"{one.strategy}{place}, {way} checkpointing"

    def is_of(self, capacity_bytes: int) -> bool:
        """Whether a GPU that CUDA reports `capacity_bytes` of can be the plan's (5 % apart)."""
        planned = self.plan.gpu.memory_bytes
        return abs(capacity_bytes - planned) * 20 <= planned

    @property
    def largest(self) -> Part:
        """The largest part."""
        return _PART.validate_python(self._parts[0][0])

    @property
    def _parts(self) -> list[tuple[str, int]]:
        """Parts and bytes, the largest first."""
        per_gpu = self.candidate.per_gpu
        sizes = [(part, int(getattr(per_gpu, f"{part}_bytes"))) for part in PARTS]
        return sorted(sizes, key=lambda pair: -pair[1])

    @property
    def sentence(self) -> str:
        """What the plan expects of this layout."""
        (first, most), (second, next_most), *_ = self._parts
        taken = " (the nearest to the log, since no layout was given)" if self.assumed else ""
        return (
            f"The plan for {self.layout}{taken} needs "
            f"{format_bytes(self.candidate.per_gpu.total_bytes)} of "
            f"{format_bytes(self.plan.capacity_bytes)}; its largest parts are {words(first)}, "
            f"{format_bytes(most)}, and {words(second)}, {format_bytes(next_most)}."
        )

    def smallest_change(self, host_total_bytes: int | None = None) -> str | None:
        """The smallest change that fits, as options; None when the layout fits or nothing does.

        `host_total_bytes` is the host's memory, where the log says it.
        """
        as_run = replace(
            self.request,
            strategy=self.candidate.strategy,
            offload=_OFFLOAD.validate_python(self.candidate.offload),
            micro_batch=self.candidate.micro_batch,
            checkpointing=self.candidate.checkpointing,
            host_memory_bytes=self.request.host_memory_bytes or host_total_bytes,
        )
        result = plan(as_run)
        if result.suggestion is None:
            return None
        said = result.suggestion.removeprefix("the smallest change that fits: ")
        if not said.startswith(_OTHER_LAYOUT):
            return said
        other = plan(replace(as_run, strategy=None, offload=None)).chosen
        if said != _OTHER_LAYOUT or other is None:
            return said
        place = "" if other.offload == "none" else f" --offload {other.offload}"
        return f"--strategy {other.strategy}{place}"


def plan_for(report: OomReport, request: PlanRequest) -> Planned:
    """Plan `request` and pick the layout that was run.

    Where the request leaves the layout open it is the one whose memory is nearest to what the log
    shows (tensors and what was tried, while training); without such numbers, the plan's choice.
    Raises InputError as `plan` does.
    """
    result = plan(request)
    if len(result.candidates) == 1:
        return Planned(request, result, result.candidates[0], assumed=False)
    allocated = report.allocated_bytes
    if report.kind == "device" and report.phase in _RUNNING and allocated is not None:
        held = allocated + (report.tried_bytes or 0)

        def distance(candidate: Candidate) -> int:
            tensors = candidate.per_gpu.total_bytes - candidate.per_gpu.framework_bytes
            return abs(tensors - held)

        nearest = min(result.candidates, key=distance)
        return Planned(request, result, nearest, assumed=True)
    smallest = min(result.candidates, key=lambda c: c.per_gpu.total_bytes)
    return Planned(request, result, result.chosen or smallest, assumed=True)


def words(part: str) -> str:
    """A part's name as it is said."""
    return {"optimizer": "optimizer states", "framework": "context and slack"}.get(
        part, part.replace("_", " ")
    )
