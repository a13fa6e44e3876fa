"""The tables of `planner_peers.py` as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from types import ModuleType

from qdeploy.plan import PlanRequest

GIB = 2**30


@dataclass
class Measured:
    """A published peak in bytes, and what each estimator says of its run."""

    record: Mapping[str, str]
    peak_bytes: int
    basis: str | None
    """None: the source does not say what it measured."""
    request: PlanRequest | None = None
    incomplete: str = ""
    """Why there is no request."""
    estimates: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def error(self, key: str) -> float:
        """Estimate over measurement, minus one."""
        return self.estimates[key] / self.peak_bytes - 1


def document(rows: list[Measured], peers: Mapping[str, ModuleType]) -> str:
    """All of it: what each claims, the summaries, the rows, and why rows are missing."""
    complete = [row for row in rows if row.request is not None]
    known = [row for row in complete if row.basis is not None]
    unknown = [row for row in complete if row.basis is None]
    about = (
        f"{len(rows)} published peaks, {len(complete)} of them described well enough to plan. "
        "Each tool gets every input that it has, and is asked only for runs that its inputs can "
        "express. Errors are estimate / measurement - 1, bytes against bytes. p90 is the error "
        "that nine of ten peaks stay within (nearest rank). Made by "
        "`python benchmarks/planner_peers.py --out FILE`."
    )
    return "\n".join(
        [
            "# The planner beside other estimators",
            "",
            about,
            "",
            *_claims(peers),
            "",
            "## Peaks whose source says what was measured",
            "",
            *_summary(known, peers),
            "",
            "## Peaks whose source does not say what was measured",
            "",
            *_summary(unknown, peers),
            "",
            "## Every peak",
            "",
            *_every(complete, peers),
            "",
            "## Peaks that are left out",
            "",
            *_missing(rows, peers),
            "",
        ]
    )


def _claims(peers: Mapping[str, ModuleType]) -> list[str]:
    lines = ["| tool | version | what it estimates | units |", "| --- | --- | --- | --- |"]
    for key, peer in peers.items():
        version = next(
            pin.split("==")[1]
            for pin in peer.REQUIREMENTS
            if pin.startswith((f"{key}==", f"{key}-"))
        )
        lines.append(f"| {peer.NAME} | {version} | {peer.ESTIMATES} | {peer.UNITS} |")
    return lines


def _summary(rows: list[Measured], peers: Mapping[str, ModuleType]) -> list[str]:
    figures = "median error | p90 | furthest below"
    lines = [
        f"| tool | peaks | {figures} | qdeploy on these: {figures} |",
        f"|{' --- |' * 8}",
    ]
    for key, peer in peers.items():
        shared = [row for row in rows if {key, "qdeploy"} <= row.estimates.keys()]
        alone = [row for row in rows if key in row.estimates and "qdeploy" not in row.estimates]
        note = f" (and {len(alone)} that qdeploy refuses)" if alone else ""
        cells = [*_figures(shared, key), *_figures(shared, "qdeploy")]
        lines.append(f"| {peer.NAME} | {len(shared)}{note} | {' | '.join(cells)} |")
    every = [row for row in rows if "qdeploy" in row.estimates]
    cells = [*_figures(every, "qdeploy"), "", "", ""]
    lines.append(f"| qdeploy, all peaks | {len(every)} | {' | '.join(cells)} |")
    return lines


def _figures(rows: list[Measured], key: str) -> list[str]:
    """Median and 90th percentile of the absolute error, and the lowest error if one is below."""
    if not rows:
        return ["", "", ""]
    errors = [row.error(key) for row in rows]
    sizes = sorted(abs(error) for error in errors)
    p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
    lowest = min(errors)
    return [
        f"{100 * median(sizes):.1f} %",
        f"{100 * p90:.1f} %",
        f"{100 * lowest:.1f} %" if lowest < 0 else "none",
    ]


def _every(rows: list[Measured], peers: Mapping[str, ModuleType]) -> list[str]:
    names = [*(peer.NAME for peer in peers.values()), "qdeploy"]
    head = f"| row | model | run | measured | as | {' | '.join(names)} |"
    lines = [head, f"| --- | --- | --- | --- | --- |{' --- |' * len(names)}"]
    for row in rows:
        record = row.record
        run = (
            f"{record['n_gpus']} GPU, {record['strategy']}, {record['peft']}, "
            f"{record['micro_batch']} x {record['seq_len']}"
        )
        cells = " | ".join(_cell(row, key) for key in (*peers, "qdeploy"))
        lines.append(
            f"| {record['id']} | {record['model']} | {run} | {row.peak_bytes / GIB:.2f} GiB "
            f"| {row.basis or 'not said'} | {cells} |"
        )
    return lines


def _cell(row: Measured, key: str) -> str:
    if key not in row.estimates:
        return "-"
    return f"{row.estimates[key] / GIB:.2f} ({100 * row.error(key):+.0f} %)"


def _missing(rows: list[Measured], peers: Mapping[str, ModuleType]) -> list[str]:
    lines = ["| tool | peaks | why |", "| --- | --- | --- |"]
    open_rows = Counter(row.incomplete for row in rows if row.request is None)
    lines += [f"| all | {count} | {reason} |" for reason, count in open_rows.most_common()]
    names = {**{key: peer.NAME for key, peer in peers.items()}, "qdeploy": "qdeploy"}
    for key, name in names.items():
        reasons = Counter(row.refusals[key] for row in rows if key in row.refusals)
        for reason, count in reasons.most_common():
            lines.append(f"| {name} | {count} | {reason.replace('|', '/')} |")
    return lines
