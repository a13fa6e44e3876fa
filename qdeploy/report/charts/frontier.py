"""What fits of one layout, as an SVG file of its own: micro-batch over sequence length.

Both axes are logarithmic, with marks at powers of two. Unlike the charts of the page it carries its
text and colours with it, for light and dark backgrounds; the series differ in their strokes too.
"""

from __future__ import annotations

from markupsafe import Markup

from qdeploy.plan.frontier import Curve, Frontier, Point
from qdeploy.plan.frontier.render import short
from qdeploy.report.charts.document import Sheet, document
from qdeploy.report.charts.frame import Scale

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 28, 96, 64
_MOST_TICKS = 13

_STYLE = Markup(
    ".axis{stroke:var(--soft)}"
    ".curve{fill:none;stroke-width:2.5;stroke-linejoin:round}.s0{stroke:var(--s0)}"
    ".s1{stroke:var(--s1);stroke-dasharray:7 4}.d0{fill:var(--s0)}.d1{fill:var(--s1)}"
    ".asked{fill:none;stroke:var(--ink);stroke-width:2}"
)


def frontier_svg(frontier: Frontier) -> str:
    """A whole SVG document: a curve with and one without checkpointing, and the asked size."""
    points = [point for curve in frontier.curves for point in curve.points()]
    lengths = [point.seq_len for point in points] + [frontier.asked_seq_len]
    sizes = [point.micro_batch for point in points] + [frontier.asked_micro_batch]
    x, y = _scale(lengths), _scale(sizes)
    offload = "" if frontier.offload == "none" else f", {frontier.offload} on the host"
    return document(
        Sheet(_WIDTH, _HEIGHT, _LEFT),
        head=f"{frontier.model} on {frontier.gpus} x {frontier.gpu}: {frontier.strategy}{offload}",
        words=" ".join(_words(curve) for curve in frontier.curves),
        style=_STYLE,
        drawn=Markup("").join(
            [
                _legend(frontier),
                _axes(x, y),
                *(_curve(curve, at, x, y) for at, curve in enumerate(frontier.curves)),
                _asked(frontier, x, y),
            ]
        ),
    )


def _scale(values: list[int]) -> Scale:
    """From the power of two at or below the least value to the one at or above the largest."""
    low = 1 << (min(values).bit_length() - 1)
    high = 1 << (max(values) - 1).bit_length()
    return Scale(low, max(high, 2 * low), log=True)


def _ticks(scale: Scale) -> list[int]:
    powers = range(int(scale.low).bit_length() - 1, int(scale.high).bit_length())
    every = -(-len(powers) // _MOST_TICKS)
    return [1 << power for power in powers[::every]]


def _at(scale: Scale, value: int, start: float, end: float) -> str:
    return f"{start + (end - start) * scale(value) / 100:.1f}"


def _x(scale: Scale, tokens: int) -> str:
    return _at(scale, tokens, _LEFT, _WIDTH - _RIGHT)


def _y(scale: Scale, sequences: int) -> str:
    return _at(scale, sequences, _HEIGHT - _BOTTOM, _TOP)


def _axes(x: Scale, y: Scale) -> Markup:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    rows = Markup("").join(
        Markup(
            '<line class="grid" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>'
            '<text x="{3}" y="{2}" dy=".35em" text-anchor="end">{4}</text>'
        ).format(_LEFT, right, _y(y, size), _LEFT - 8, size)
        for size in _ticks(y)
    )
    columns = Markup("").join(
        Markup('<text x="{0}" y="{1}" text-anchor="middle">{2}</text>').format(
            _x(x, length), bottom + 20, short(length)
        )
        for length in _ticks(x)
    )
    return Markup(
        '<g aria-hidden="true">{0}{1}<path class="axis" fill="none" d="M{2} {3}V{4}H{5}"/>'
        '<text x="{6}" y="{7}" text-anchor="middle">tokens of a sequence</text>'
        '<text x="{2}" y="{8}">sequences of a micro-batch</text></g>'
    ).format(
        rows, columns, _LEFT, _TOP, bottom, right, (_LEFT + right) / 2, _HEIGHT - 16, _TOP - 14
    )


def _curve(curve: Curve, series: int, x: Scale, y: Scale) -> Markup:
    places = [(_x(x, p.seq_len), _y(y, p.micro_batch), p) for p in curve.points()]
    line = " ".join(f"{left},{top}" for left, top, _ in places)
    dots = Markup("").join(
        Markup('<circle class="d{}" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
            series, left, top, _title(point, curve)
        )
        for left, top, point in places
    )
    return Markup('<polyline class="curve s{}" points="{}"/>{}').format(series, line, dots)


def _asked(frontier: Frontier, x: Scale, y: Scale) -> Markup:
    return Markup('<circle class="asked" cx="{}" cy="{}" r="8"><title>{}</title></circle>').format(
        _x(x, frontier.asked_seq_len), _y(y, frontier.asked_micro_batch), _asked_words(frontier)
    )


def _asked_words(frontier: Frontier) -> str:
    verdict = "fits" if frontier.asked_fits else "does not fit"
    return f"asked for: {frontier.asked_micro_batch} x {frontier.asked_seq_len} tokens, {verdict}"


def _legend(frontier: Frontier) -> Markup:
    left, entries = _LEFT, []
    for series, curve in enumerate(frontier.curves):
        entries.append(
            Markup(
                '<line class="curve s{0}" x1="{1}" x2="{2}" y1="50" y2="50"/>'
                '<text class="ink" x="{3}" y="50" dy=".35em">{4}</text>'
            ).format(series, left, left + 28, left + 36, _name(curve))
        )
        left += 210
    entries.append(
        Markup(
            '<circle class="asked" cx="{0}" cy="50" r="6"/>'
            '<text class="ink" x="{1}" y="50" dy=".35em">{2}</text>'
        ).format(left + 8, left + 22, _asked_words(frontier))
    )
    return Markup("").join(entries)


def _name(curve: Curve) -> str:
    return f"{'with' if curve.checkpointing else 'without'} checkpointing"


def _title(point: Point, curve: Curve) -> str:
    return f"{_name(curve)}: {point.micro_batch} x {point.seq_len} tokens"


def _words(curve: Curve) -> str:
    """The curve in words, for those who do not see it."""
    found = [f"{p.micro_batch} at {p.seq_len} tokens" for p in curve.by_seq_len if p.micro_batch]
    return f"Largest micro-batch {_name(curve)}: {', '.join(found) or 'nothing fits'}."
