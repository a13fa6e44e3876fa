"""Memory by part: training by strategy, and the weights that serving holds."""

from __future__ import annotations

from markupsafe import Markup

from qdeploy.core.units import format_bytes
from qdeploy.evals.results import CandidateInfo
from qdeploy.plan.schema import PARTS, Candidate, Plan
from qdeploy.report.charts.frame import legend

_MOST = 16


def training_chart(plan: Plan) -> Markup:
    """A stacked bar per strategy against the memory of the GPU."""
    shown = plan.candidates[:_MOST]
    if not shown:
        return Markup("")
    capacity = plan.gpu.memory_bytes
    widest = max([capacity, *(c.per_gpu.total_bytes for c in shown)]) * 1.02
    rows = Markup("").join(
        _stack(candidate, widest, capacity, chosen=candidate == plan.chosen) for candidate in shown
    )
    names = [
        (at, part.replace("_", " "))
        for at, part in enumerate(PARTS)
        if any(_bytes(candidate, part) for candidate in shown)
    ]
    return legend(names) + Markup('<div class="bars">{}</div>').format(rows)


def serving_chart(candidates: list[CandidateInfo]) -> Markup:
    """Bytes of weights per candidate."""
    widest = max((c.weights_bytes for c in candidates), default=0)
    if widest == 0:
        return Markup("")
    rows = Markup("").join(
        _bar_row(
            candidate.name,
            Markup('<rect class="f{}" x="0" y="15%" width="{:.2f}%" height="70%"/>').format(
                at, 100 * candidate.weights_bytes / widest
            ),
            f"{format_bytes(candidate.weights_bytes)} "
            f"({candidate.weights_bytes / candidates[0].weights_bytes:.0%})",
        )
        for at, candidate in enumerate(candidates)
    )
    return Markup('<div class="bars">{}</div>').format(rows)


def _stack(candidate: Candidate, widest: float, capacity: int, *, chosen: bool) -> Markup:
    left, rects = 0.0, []
    for at, part in enumerate(PARTS):
        width = 100 * _bytes(candidate, part) / widest
        rects.append(
            Markup(
                '<rect class="f{}" x="{:.2f}%" y="15%" width="{:.2f}%" height="70%">'
                "<title>{}: {}</title></rect>"
            ).format(at, left, width, part.replace("_", " "), format_bytes(_bytes(candidate, part)))
        )
        left += width
    line = Markup(
        '<line class="capacity" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%">'
        "<title>memory of the GPU: {1}</title></line>"
    ).format(100 * capacity / widest, format_bytes(capacity))
    name = candidate.strategy
    if candidate.offload != "none":
        name += f" · offload {candidate.offload}"
    if candidate.checkpointing:
        name += " · checkpointing"
    mark = "chosen" if chosen else "fits" if candidate.fits else "does not fit"
    value = Markup('{} <span class="badge {}">{}</span>').format(
        format_bytes(candidate.per_gpu.total_bytes), "pass" if candidate.fits else "fail", mark
    )
    return _bar_row(name, Markup("").join([*rects, line]), value)


def _bar_row(name: str, marks: Markup, value: str | Markup) -> Markup:
    return Markup(
        '<div class="bar-row"><div class="bar-name">{}</div>'
        '<svg class="track" role="img" aria-label="{}">{}</svg>'
        '<div class="bar-value">{}</div></div>'
    ).format(name, name, marks, value)


def _bytes(candidate: Candidate, part: str) -> int:
    return int(getattr(candidate.per_gpu, f"{part}_bytes"))
