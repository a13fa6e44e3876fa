"""Writes what the gate decided: each file whole or not at all, none left from an earlier one."""

from __future__ import annotations

from pathlib import Path

from qdeploy.core.artifacts import write_text
from qdeploy.evals.results import EvalReport
from qdeploy.gate.blessing import blessings
from qdeploy.gate.junit import junit_xml
from qdeploy.gate.summary import summary_md
from qdeploy.gate.verdict import (
    BLESSING_NAME,
    JUNIT_NAME,
    SUMMARY_NAME,
    VERDICT_NAME,
    Verdict,
)


def write_outputs(verdict: Verdict, report: EvalReport, out: Path) -> list[Path]:
    """verdict.json, junit.xml, summary.md and the blessings in folder `out`; their paths."""
    # First of all: a permission must not outlive the verdict that gave it.
    for old in [*out.glob(BLESSING_NAME), *out.glob(f"*.{BLESSING_NAME}")]:
        old.unlink()
    texts = {
        VERDICT_NAME: verdict.to_json(),
        JUNIT_NAME: junit_xml(verdict),
        SUMMARY_NAME: summary_md(verdict),
        **{name: blessing.to_json() for name, blessing in blessings(verdict, report).items()},
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]
