"""`summary.md`: the verdict in Markdown, for a CI job's summary page or a pull request.

GitHub refuses a step summary above 1024 KiB, so rows are left out, and counted, above 900 KiB.
"""

from __future__ import annotations

from qdeploy.gate.verdict import ClassVerdict, Outcome, Verdict

LIMIT_BYTES = 900 * 1024

_MARKS = {Outcome.PASS: "✅", Outcome.FAIL: "❌", Outcome.INCONCLUSIVE: "❔", Outcome.ERROR: "⚠️"}


def summary_md(verdict: Verdict, limit_bytes: int = LIMIT_BYTES) -> str:
    """The verdict as Markdown of at most `limit_bytes` bytes in UTF-8."""
    required = f", required: {', '.join(verdict.required)}" if verdict.required else ""
    head = [
        f"## {_mark(verdict.outcome)}: {_cell(verdict.decision, 20_000)}",
        "",
        f"Policy {_cell(verdict.policy)}, baseline {_cell(verdict.baseline)}{_cell(required)}.",
        "",
        *(f"- **ERROR** {_cell(error)}" for error in verdict.errors[:50]),
        "",
        "| task class | goes to | candidate | outcome | reason |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines = head
    left = limit_bytes - len("\n".join(head).encode()) - 200
    for at, judged in enumerate(verdict.classes):
        row = _row(judged, verdict.routing.get(judged.task_class, verdict.baseline))
        left -= len(row.encode()) + 1
        if left < 0:
            missing = len(verdict.classes) - at
            lines += ["", f"{missing} more rows are in verdict.json."]
            break
        lines.append(row)
    return "\n".join(lines) + "\n"


def _row(judged: ClassVerdict, goes_to: str) -> str:
    cells = (judged.task_class, goes_to, judged.candidate, _mark(judged.outcome), judged.reason)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _mark(outcome: Outcome) -> str:
    return f"{_MARKS[outcome]} {outcome.value}"


def _cell(text: str, most: int = 2_000) -> str:
    """`text` on one line that cannot end a table's cell or start HTML."""
    flat = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return flat if len(flat) <= most else f"{flat[:most]}…"
