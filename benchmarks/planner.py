"""The planner against published measurements: every row, its error, and what stands out.

    python benchmarks/planner.py [--peaks FILE] [--bounds FILE] [--out FILE.md]

Errors are of the planned total against the measured peak, on the basis that the row measured.
Rows whose basis the source does not say are compared on `reserved` and reported apart. A run that
fitted or did not is judged as `train-plan` judges it.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from planner_rows import FOLDER, Refusal, Row, peaks_of, read_rows, request_of

from qdeploy.core.errors import QdeployError
from qdeploy.core.units import GIB
from qdeploy.plan import PlanRequest, plan
from qdeploy.plan.schema import Candidate

_HEADING = """# Measured peaks, row by row

Made by `python benchmarks/planner.py --out docs/measured-peaks.md`. Rows and sources:
`benchmarks/planner_rows/`. In brackets the moment of the step at which the plan peaks.

"""
STATED = ("allocated", "reserved", "device")


@dataclass(frozen=True)
class Compared:
    """One measured peak beside its plan."""

    row: Row
    basis: str
    stated: bool
    measured_bytes: int
    candidate: Candidate

    @property
    def error(self) -> float:
        """Planned over measured, less one."""
        return self.candidate.per_gpu.total_bytes / self.measured_bytes - 1

    @property
    def inside(self) -> bool:
        """The measured peak lies in the plan's interval."""
        parts = self.candidate.per_gpu
        return parts.low_bytes <= self.measured_bytes <= parts.high_bytes


@dataclass(frozen=True)
class Verdict:
    """A run that fitted or did not, beside the plan's verdict."""

    row: Row
    fits: bool
    planned: Candidate

    @property
    def right(self) -> bool:
        """The plan says what happened."""
        return self.planned.fits == self.fits


def compare_peaks(rows: list[Row]) -> tuple[list[Compared], list[tuple[Row, str]]]:
    """Every measured peak that can be planned, and the rows that cannot, with the reason."""
    compared, refused = [], []
    for row in rows:
        try:
            request = request_of(row)
            if isinstance(request, Refusal):
                refused.append((row, request.reason))
                continue
            for peak in peaks_of(row):
                basis = peak.basis or "reserved"
                candidate = _only(request, basis)
                stated = peak.basis is not None
                compared.append(Compared(row, basis, stated, peak.peak_bytes, candidate))
        except QdeployError as error:
            refused.append((row, str(error)))
    return compared, refused


def compare_bounds(rows: list[Row]) -> tuple[list[Verdict], list[tuple[Row, str]]]:
    """Every run whose outcome is known and that can be planned, and the others."""
    verdicts, refused = [], []
    for row in rows:
        try:
            request = request_of(row)
            if isinstance(request, Refusal):
                refused.append((row, request.reason))
            else:
                verdicts.append(Verdict(row, row["outcome"] == "fits", _only(request, "device")))
        except QdeployError as error:
            refused.append((row, str(error)))
    return verdicts, refused


def _only(request: PlanRequest, basis: str) -> Candidate:
    fields = {"basis": basis, "offload": request.offload or "none"}
    return plan(dataclasses.replace(request, **fields)).candidates[0]  # type: ignore[arg-type]


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def summary(compared: list[Compared]) -> str:
    """Count, median, 90th percentile, worst below, share inside the interval."""
    absolute = [abs(one.error) for one in compared]
    inside = sum(one.inside for one in compared)
    return (
        f"{len(compared)} peaks: median |error| {100 * statistics.median(absolute):.1f} %, "
        f"90th percentile {100 * quantile(absolute, 0.9):.1f} %, lowest "
        f"{100 * min(one.error for one in compared):+.1f} %, highest "
        f"{100 * max(one.error for one in compared):+.1f} %, "
        f"{inside} inside the interval"
    )


def _report(peaks: list[Row], bounds: list[Row]) -> list[str]:
    compared, refused = compare_peaks(peaks)
    lines = ["## Measured peaks", ""]
    stated = [one for one in compared if one.stated]
    groups = [("all that say what they measure", stated)]
    groups += [(basis, [one for one in stated if one.basis == basis]) for basis in STATED]
    groups.append(("basis unknown, held against reserved", [c for c in compared if not c.stated]))
    lines += [f"- {name}: {summary(group)}" for name, group in groups if group]
    lines += ["", "| row | model | trainer | run | basis | measured GiB | planned GiB | error |",
              "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    lines += [_line(one) for one in sorted(compared, key=lambda c: (not c.stated, c.row["source"]))]
    lines += ["", "Not planned:", ""]
    lines += [f"- {row['id']} {row['model']}: {reason}" for row, reason in refused]
    verdicts, open_ones = compare_bounds(bounds)
    wrong = [verdict for verdict in verdicts if not verdict.right]
    false_fits = [verdict for verdict in wrong if verdict.planned.fits]
    lines += ["", "## Runs that fitted or did not", ""]
    lines.append(
        f"{len(verdicts) - len(wrong)} of {len(verdicts)} right "
        f"({100 * (1 - len(wrong) / max(1, len(verdicts))):.1f} %), {len(false_fits)} said to fit "
        f"that did not; outcomes {dict(Counter(v.row['outcome'] for v in verdicts))}"
    )
    lines += [f"- wrong: {v.row['id']} {v.row['model']}: {v.planned.reason}" for v in wrong]
    lines += [f"- not planned: {row['id']}: {reason}" for row, reason in open_ones]
    return lines


def _line(one: Compared) -> str:
    row, parts = one.row, one.candidate.per_gpu
    run = f"{row['n_gpus']} x ({row['micro_batch']} x {row['seq_len']}), {row['strategy']}"
    run += "" if row["peft"] == "none" else f", {row['peft']}"
    basis = one.basis if one.stated else f"{one.basis}?"
    return (
        f"| {row['id']} | {row['model']} | {row['source'].split('/')[0]} | {run} | {basis} | "
        f"{one.measured_bytes / GIB:.2f} | {parts.total_bytes / GIB:.2f} ({parts.peak}) | "
        f"{100 * one.error:+.1f} % |"
    )


def main() -> int:
    """Compare, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peaks", type=Path, default=FOLDER / "measured_peaks.csv")
    parser.add_argument("--bounds", type=Path, default=FOLDER / "fit_bounds.csv")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = "\n".join(_report(read_rows(options.peaks), read_rows(options.bounds))) + "\n"
    print(text)
    if options.out:
        options.out.write_text(_HEADING + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
