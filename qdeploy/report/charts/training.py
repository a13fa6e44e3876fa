"""A training run as an SVG file of its own: loss, loss scale where there is one, memory by phase.

It carries its text and colours with it, for light and dark backgrounds. Panels stand below each
other; measured and planned bars differ in their fill, not in colour alone.
"""

from __future__ import annotations

from markupsafe import Markup

from qdeploy.core.units import GIB, format_bytes
from qdeploy.report.charts.document import Sheet, document
from qdeploy.report.charts.frame import Scale, Tick, log_scale, nice_step
from qdeploy.train.report import PhaseMemory, TrainReport

_WIDTH, _PANEL, _GAP = 760, 220, 74
_LEFT, _RIGHT, _TOP, _FOOT = 84, 28, 84, 48
_MOST_POINTS = 600

_STYLE = Markup(
    ".axis{stroke:var(--soft);fill:none}.curve{fill:none;stroke:var(--s0);stroke-width:2;"
    "stroke-linejoin:round}.dot{fill:var(--s0)}.measured{fill:var(--s0)}"
    ".planned{fill:none;stroke:var(--s1);stroke-width:2;stroke-dasharray:5 3}"
)


def training_svg(report: TrainReport) -> str:
    """A whole SVG document of `report`; memory is that of the fullest rank."""
    panels = []
    if report.loss:
        panels.append(_loss(report))
    if report.loss_scale:
        panels.append(_loss_scale(report))
    panels.append(_memory(report))
    height = _TOP + len(panels) * (_PANEL + _GAP) - _GAP + _FOOT
    drawn = Markup("").join(
        Markup('<g transform="translate(0 {})">{}</g>').format(_TOP + at * (_PANEL + _GAP), panel)
        for at, panel in enumerate(panels)
    )
    return document(
        Sheet(_WIDTH, height, _LEFT),
        head=_head(report),
        words=_words(report),
        style=_STYLE,
        drawn=drawn,
    )


def _head(report: TrainReport) -> str:
    ranks = len(report.ranks)
    what = "GPU" if report.device == "cuda" else "CPU process"
    many = "" if ranks == 1 else "es" if what.endswith("s") else "s"
    return f"{report.planned.strategy} on {ranks} {what}{many}: {report.steps} steps"


def _words(report: TrainReport) -> str:
    """The charts in words, for those who do not see them."""
    found = []
    if report.loss:
        first, last = report.loss[0], report.loss[-1]
        found.append(
            f"Loss {first.loss:.4g} at step {first.step}, {last.loss:.4g} at step {last.step}."
        )
    if report.loss_scale:
        found.append(f"{report.skipped_steps} steps left out for infinite gradients.")
    found.append(
        f"Peak memory {format_bytes(report.measured_bytes)}, planned "
        f"{format_bytes(report.planned_bytes)}."
    )
    return " ".join(found)


def _loss(report: TrainReport) -> Markup:
    points = [(float(point.step), point.loss) for point in report.loss]
    losses = [loss for _, loss in points]
    step = nice_step(max(max(losses) - min(losses), 0.05 * max(*losses, 1e-9)) / 5)
    low = step * (min(losses) // step)
    y = Scale(low, max(losses) + step)
    ticks = [(place, f"{low + float(text):g}") for place, text in Scale(0, y.high - low).ticks()]
    return _panel("loss", ticks, _steps(report)) + _curve(points, _steps_scale(report), y)


def _loss_scale(report: TrainReport) -> Markup:
    """A staircase: the scale stays until it changes."""
    y = log_scale(point.scale for point in report.loss_scale)
    assert y is not None
    corners: list[tuple[float, float]] = []
    for point in report.loss_scale:
        if corners:
            corners.append((float(point.step), corners[-1][1]))
        corners.append((float(point.step), point.scale))
    corners.append((float(report.steps), corners[-1][1]))
    title = f"loss scale ({report.skipped_steps} steps left out)"
    return _panel(title, y.ticks(), _steps(report)) + _curve(corners, _steps_scale(report), y)


def _memory(report: TrainReport) -> Markup:
    fullest = max(report.ranks, key=lambda rank: rank.peak_bytes)
    phases = fullest.phases
    most = max(max(phase.measured_bytes, phase.planned_bytes or 0) for phase in phases)
    y = Scale(0, max(most, 1) * 1.1 / GIB)
    width = (_WIDTH - _LEFT - _RIGHT) / max(1, len(phases))
    ticks: list[Tick] = [(100 * (at + 0.5) / len(phases), p.phase) for at, p in enumerate(phases)]
    bars = Markup("").join(
        _bars(phase, _LEFT + at * width, width, y) for at, phase in enumerate(phases)
    )
    title = f"GiB of rank {fullest.rank}: bar measured, dashed planned"
    return _panel(title, y.ticks(), (ticks, "phase of a step")) + bars


def _bars(phase: PhaseMemory, left: float, width: float, y: Scale) -> Markup:
    title = f"{phase.phase}: {format_bytes(phase.measured_bytes)} measured"
    if phase.planned_bytes is not None:
        title += f", {format_bytes(phase.planned_bytes)} planned"
    kinds = (("measured", phase.measured_bytes, 0.2), ("planned", phase.planned_bytes, 0.14))
    rects = Markup("").join(
        Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            kind,
            left + inset * width,
            _y(y, size / GIB),
            width * (1 - 2 * inset),
            _PANEL - _y(y, size / GIB),
        )
        for kind, size, inset in kinds
        if size is not None
    )
    return Markup("<g><title>{}</title>{}</g>").format(title, rects)


def _steps_scale(report: TrainReport) -> Scale:
    return Scale(0, max(report.steps, 1))


def _steps(report: TrainReport) -> tuple[list[Tick], str]:
    return _steps_scale(report).ticks(), "step"


def _panel(title: str, y: list[Tick], x: tuple[list[Tick], str]) -> Markup:
    right = _WIDTH - _RIGHT
    rows = Markup("").join(
        Markup(
            '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
            '<text x="{3}" y="{2:.1f}" dy=".35em" text-anchor="end">{4}</text>'
        ).format(_LEFT, right, _PANEL * (1 - place / 100), _LEFT - 8, text)
        for place, text in y
    )
    columns = Markup("").join(
        Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            _LEFT + (right - _LEFT) * place / 100, _PANEL + 18, text
        )
        for place, text in x[0]
    )
    return Markup(
        '<g aria-hidden="true">{}{}<path class="axis" d="M{} 0V{}H{}"/>'
        '<text class="ink" x="{}" y="-14">{}</text>'
        '<text x="{:.1f}" y="{}" text-anchor="middle">{}</text></g>'
    ).format(
        rows, columns, _LEFT, _PANEL, right, _LEFT, title, (_LEFT + right) / 2, _PANEL + 38, x[1]
    )


def _curve(points: list[tuple[float, float]], x: Scale, y: Scale) -> Markup:
    """A line; a dot for a single point. Of very many points every n-th is drawn, and the last."""
    shown = [*points[:: max(1, len(points) // _MOST_POINTS)], points[-1]]
    places = [f"{_x(x, step):.1f},{_y(y, value):.1f}" for step, value in shown]
    if len(points) == 1:
        left, top = places[0].split(",")
        return Markup('<circle class="dot" cx="{}" cy="{}" r="4"/>').format(left, top)
    return Markup('<polyline class="curve" points="{}"/>').format(" ".join(places))


def _x(x: Scale, value: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x(value) / 100


def _y(y: Scale, value: float) -> float:
    return _PANEL * (1 - y(value) / 100)
