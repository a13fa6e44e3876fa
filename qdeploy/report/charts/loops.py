"""Share of long texts that have fallen into a loop, by token position."""

from __future__ import annotations

import math

from markupsafe import Markup

from qdeploy.evals.results import Sample
from qdeploy.report.charts.frame import Scale, chart, curve, legend, nice_step


def loops_chart(samples: list[tuple[str, list[Sample]]]) -> Markup:
    """One curve per candidate: (name, samples of one task class), the baseline first.

    At position p: the share of all texts whose loop began at or before p. A text that ended by
    itself stays counted as free of loops. Empty markup without samples.
    """
    longest = max((s.output_tokens for _, items in samples for s in items), default=0)
    if longest == 0:
        return Markup("")
    shares = [loop_share(items, longest) for _, items in samples]
    top = max(points[-1][1] for points in shares)
    step = nice_step(max(top, 0.05) / 5)
    x, y = Scale(0, longest), Scale(0, step * math.ceil(max(top, 0.05) / step - 1e-9))
    marks = Markup("").join(
        curve([(x(at), y(share)) for at, share in points], series, f"{name}: {points[-1][1]:.1%}")
        for series, ((name, _), points) in enumerate(zip(samples, shares, strict=True))
    )
    y_ticks = [(place, f"{float(text):.0%}") for place, text in y.ticks()]
    ends = ", ".join(
        f"{name} {points[-1][1]:.1%}" for (name, _), points in zip(samples, shares, strict=True)
    )
    names = [
        (series, f"{name}: {points[-1][1]:.1%} of {len(items)} texts")
        for series, ((name, items), points) in enumerate(zip(samples, shares, strict=True))
    ]
    return legend(names) + chart(
        marks,
        (x.ticks(), "token position"),
        (y_ticks, "texts in a loop"),
        f"Share of texts in a loop at the end: {ends}",
    )


def loop_share(samples: list[Sample], longest: int) -> list[tuple[int, float]]:
    """(position, share in a loop): the corners of a staircase from 0 to `longest`."""
    onsets = sorted(s.loop_onset for s in samples if s.loop_onset is not None)
    points = [(0, 0.0)]
    for count, onset in enumerate(onsets, start=1):
        points += [(onset, points[-1][1]), (onset, count / len(samples))]
    return [*points, (longest, points[-1][1])]
