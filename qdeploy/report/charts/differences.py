"""Paired differences with their intervals, each in units of its margin.

In these units every row has the same line to stay right of: an interval right of -1 passes, one
left of it fails, one across it is inconclusive. Turned so that right is better.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from qdeploy.gate.verdict import Outcome
from qdeploy.report.charts.frame import Scale

_REACH = 3.0
"""Margins shown to either side; what lies beyond is drawn at the edge."""


@dataclass(frozen=True)
class Difference:
    """One row: a metric of a task class for one candidate, candidate minus baseline."""

    task_class: str
    name: str
    """Candidate and metric."""
    mean: float
    low: float | None
    high: float | None
    margin: float | None
    """None without a policy: then one unit is the farther end of the interval."""
    higher_is_better: bool
    outcome: Outcome | None
    n: int
    blocking: bool = True


def differences_chart(rows: list[Difference]) -> Markup:
    """Rows under a heading per task class; empty markup for no rows."""
    if not rows:
        return Markup("")
    parts = [_head(with_margin=any(row.margin is not None for row in rows))]
    task_class = None
    for row in rows:
        if row.task_class != task_class:
            task_class = row.task_class
            parts.append(Markup('<h4 class="forest-class">{}</h4>').format(task_class))
        parts.append(_row(row))
    return Markup('<div class="forest">{}</div>').format(Markup("").join(parts))


def _head(*, with_margin: bool) -> Markup:
    margin = (
        Markup('<span style="left:{:.2f}%">−margin</span>').format(_place(-1))
        if with_margin
        else ""
    )
    return Markup(
        '<div class="forest-row forest-axis" aria-hidden="true"><div></div><div class="ends">'
        '<span class="start">◂ worse</span>{}<span style="left:50%">same</span>'
        '<span class="end">better ▸</span></div><div></div><div></div></div>'
    ).format(margin)


def _row(row: Difference) -> Markup:
    sign = 1.0 if row.higher_is_better else -1.0
    reach = max((abs(end) for end in (row.low, row.high) if end is not None), default=0.0)
    unit = sign * (row.margin or reach or 1.0)
    state = row.outcome.value.lower() if row.outcome else "none"
    zone = ""
    if row.margin is not None:
        zone = Markup(
            '<rect class="beyond" x="0" y="0" width="{0:.2f}%" height="100%"/>'
            '<line class="margin" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="100%"/>'
        ).format(_place(-1))
    known = row.low is not None and row.high is not None
    shown = f"{row.mean:+.3g} ({row.low:+.3g} to {row.high:+.3g})" if known else f"{row.mean:+.3g}"
    note = "" if row.blocking else Markup(' <span class="note">informs only</span>')
    badge = (
        Markup('<span class="badge {}">{}</span>').format(state, row.outcome.value)
        if row.outcome
        else ""
    )
    return Markup(
        '<div class="forest-row"><div class="forest-name">{}{}</div>'
        '<svg class="track {}" role="img" aria-label="{}: {}">{}'
        '<line class="zero" x1="50%" x2="50%" y1="0" y2="100%"/>{}</svg>'
        '<div class="forest-value">{} <span class="note">n {}</span></div><div>{}</div></div>'
    ).format(row.name, note, state, row.name, shown, zone, _bar(row, unit), shown, row.n, badge)


def _bar(row: Difference, unit: float) -> Markup:
    """The interval with its mean; open ends where it goes on beyond the edge."""
    whole = ((-_REACH if row.low is None else row.low / unit), row.mean / unit)
    other = _REACH if row.high is None else row.high / unit
    low, high = sorted((whole[0], other))
    caps = Markup("").join(
        Markup('<line class="cap" x1="{0:.2f}%" x2="{0:.2f}%" y1="30%" y2="70%"/>').format(
            _place(end)
        )
        for end in (low, high)
        if abs(end) < _REACH
    )
    return Markup(
        '<line class="bar" x1="{:.2f}%" x2="{:.2f}%" y1="50%" y2="50%"/>{}'
        '<circle class="mean" cx="{:.2f}%" cy="50%" r="5"/>'
    ).format(_place(low), _place(high), caps, _place(whole[1]))


def _place(margins: float) -> float:
    return Scale(-_REACH, _REACH)(margins)
