"""`report.md`: the same findings in plain text, without prompts and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qdeploy.core.units import format_bytes
from qdeploy.gate.verdict import Outcome
from qdeploy.report import view
from qdeploy.report.inputs import ReportData
from qdeploy.report.limits import limits


def report_md(data: ReportData) -> str:
    """The report as Markdown."""
    report = data.report
    lines = [f"# Evaluation of {_cell(report.model)}", ""]
    lines += _verdict(data)
    lines += ["## Candidates", ""]
    lines += _table(
        ("candidate", "format", "weights", "computed by", "tokens generated", "seconds"),
        (
            (c.name, c.format, format_bytes(c.weights_bytes), c.runtime, str(c.generated_tokens),
             f"{c.seconds:.0f}")
            for c in report.candidates
        ),
    )  # fmt: skip
    lines += ["## Differences, candidate minus baseline, on the same items", ""]
    lines += _table(
        ("task class", "candidate", "metric", "better", "baseline", "candidate", "difference",
         "interval", "n", "lost", "won", "noise"),
        (
            (r.task_class, name, m.metric, m.direction, f"{m.baseline:.3f}", f"{m.candidate:.3f}",
             f"{m.difference:+.3f}", f"{m.low:+.3f} to {m.high:+.3f} at {m.confidence:.0%}",
             str(m.n), str(m.worse), str(m.better),
             "" if m.noise is None else f"{m.noise:+.3f}")
            for r, name, m in view.metric_rows(data)
        ),
    )  # fmt: skip
    lines += ["## Screens", ""]
    lines += _table(
        ("candidate", "tokens", "mean KL (nats)", "99th percentile", "top-1 agreement",
         "largest block error"),
        (
            (s.candidate, str(s.tokens), f"{s.kl_mean:.4g}", f"{s.kl_p99:.4g}",
             f"{s.top1_agreement:.2%}", f"{max(s.block_errors, default=0):.3g}")
            for s in report.screens
        ),
    )  # fmt: skip
    if report.findings:
        lines += ["## Findings", ""]
        lines += [f"- {f.level}: {_cell(f.message)} ({_cell(f.code)})" for f in report.findings]
        lines.append("")
    lines += ["## Not measured", "", *(f"- {_cell(text)}" for text in limits(data)), ""]
    lines += ["## How to reproduce", "", *(f"    {text}" for text in view.reproduce(data)), ""]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines.append(f"Versions: {_cell(versions)}. Machine: {_cell(report.machine)}.")
    return "\n".join(lines) + "\n"


def _verdict(data: ReportData) -> list[str]:
    verdict = data.verdict
    if verdict is None:
        return ["No verdict yet: run `qdeploy gate`.", ""]
    lines = [f"**{verdict.outcome.value}**: {_cell(verdict.decision)}", ""]
    lines += [f"- ERROR: {_cell(error)}" for error in verdict.errors]
    return lines + _table(
        ("task class", "goes to", "candidate", "outcome", "reason"),
        (
            (name, goes_to, judged.candidate, Outcome(judged.outcome).value, judged.reason)
            for name, goes_to, row in view.verdict_rows(data)
            for judged in row
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return [*lines, ""] if len(lines) > 2 else ["None.", ""]


def _cell(text: str) -> str:
    """`text` on one line that cannot end a table's cell or start HTML."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
