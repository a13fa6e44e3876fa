"""The plotting area with its axes, scales and legend; all coordinates in percent of the area."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

Tick = tuple[float, str]
"""(place in percent, label)"""


@dataclass(frozen=True)
class Scale:
    """Maps low..high to 0..100 percent, linearly or by the logarithm."""

    low: float
    high: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of `value` in percent; values outside are put on the edge."""
        ends = [value, self.low, self.high]
        if self.log:
            ends = [math.log10(max(end, 1e-300)) for end in ends]
        at, low, high = ends
        return min(100.0, max(0.0, 100 * (at - low) / (high - low)))

    def ticks(self, most: int = 6) -> list[Tick]:
        """Round values along the scale; decades when logarithmic."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            every = max(1, math.ceil((last - first) / most))
            return [(self(10.0**power), _power(power)) for power in range(first, last + 1, every)]
        step = nice_step((self.high - self.low) / most)
        count = math.floor((self.high - self.low) / step + 1e-9)
        values = [self.low + step * at for at in range(count + 1)]
        return [(self(value), f"{value:g}") for value in (round(v, 12) for v in values)]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))


def log_scale(values: Iterable[float]) -> Scale | None:
    """Whole decades around the positive values; None when there is none."""
    positive = [value for value in values if value > 0]
    if not positive:
        return None
    first = math.floor(math.log10(min(positive)))
    last = math.ceil(math.log10(max(positive)))
    return Scale(10.0**first, 10.0 ** max(last, first + 1), log=True)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -4 <= power <= 3 else f"1e{power}"


def chart(
    marks: Markup, x: tuple[list[Tick], str], y: tuple[list[Tick], str], label: str
) -> Markup:
    """A framed plotting area; `x` and `y` are (ticks, title), `label` says what it shows."""
    grid = Markup("").join(
        Markup('<line class="grid" x1="0" x2="100" y1="{0:.2f}" y2="{0:.2f}"/>').format(100 - place)
        for place, _ in y[0]
    )
    y_labels = Markup("").join(
        Markup('<span style="bottom:{:.2f}%">{}</span>').format(place, text) for place, text in y[0]
    )
    x_labels = Markup("").join(
        Markup('<span style="left:{:.2f}%">{}</span>').format(place, text) for place, text in x[0]
    )
    return Markup(
        '<div class="chart"><div class="ytitle">{}</div><div class="area">'
        '<div class="ys" aria-hidden="true">{}</div>'
        '<svg role="img" aria-label="{}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        "{}{}</svg></div>"
        '<div class="xs" aria-hidden="true">{}</div><div class="xtitle">{}</div></div>'
    ).format(y[1], y_labels, label, grid, marks, x_labels, x[1])


def dot(x: float, y: float, series: int, title: str) -> Markup:
    """A round mark that stays round: a line of no length with round ends."""
    return Markup('<path class="dot s{}" d="M{:.2f} {:.2f}h0"><title>{}</title></path>').format(
        series, x, 100 - y, title
    )


def curve(points: list[tuple[float, float]], series: int, title: str) -> Markup:
    """A line through points in percent."""
    path = " ".join(f"{x:.2f},{100 - y:.2f}" for x, y in points)
    return Markup('<polyline class="curve s{}" points="{}"><title>{}</title></polyline>').format(
        series, path, title
    )


def limit_line(y: float, title: str) -> Markup:
    """A dashed horizontal line at a limit."""
    return Markup(
        '<line class="limit" x1="0" x2="100" y1="{0:.2f}" y2="{0:.2f}"><title>{1}</title></line>'
    ).format(100 - y, title)


def legend(entries: list[tuple[int, str]]) -> Markup:
    """Names of the series by colour: (series, name)."""
    items = Markup("").join(
        Markup('<li><i class="b{}"></i>{}</li>').format(series, name) for series, name in entries
    )
    return Markup('<ul class="legend">{}</ul>').format(items)
