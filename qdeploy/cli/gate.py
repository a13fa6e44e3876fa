"""`qdeploy gate`: decide by a policy, from the files of an evaluation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qdeploy.cli.project import find_project
from qdeploy.core.artifacts import read_artifact
from qdeploy.core.console import results, say
from qdeploy.core.shipped import find_yaml
from qdeploy.evals.results import REPORT_NAME, EvalReport
from qdeploy.gate.verdict import EXIT_CODES, Outcome, Verdict

_STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.ERROR: "magenta",
}


def gate(
    report: Annotated[
        Path, typer.Argument(help="Folder of qdeploy eval, or its eval_report.json.")
    ] = Path("artifacts/eval"),
    policy: Annotated[
        str | None, typer.Option(help="Policy: a YAML file, or a shipped one: default, strict.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="Only this candidate counts, in every task class; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; default: that of the report.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="plan.json to show in report.html.")] = None,
    examples: Annotated[
        int, typer.Option(help="Items of each task class in report.html; 0 keeps texts out.", min=0)
    ] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdict.json.")] = False,
) -> None:
    """Decide which candidate may serve which task class.

    Exit code 0: every candidate passed, 1: one was rejected, 2: not a valid comparison,
    3: not enough evidence. Writes verdict.json, junit.xml, summary.md, blessing.json, report.html.
    """
    from qdeploy.gate.decide import decide
    from qdeploy.gate.outputs import write_outputs
    from qdeploy.gate.policy import read_policy
    from qdeploy.report.html import write_report
    from qdeploy.report.inputs import find_manifests, find_plan

    project = find_project()
    name = policy or (project.policy if project else None) or "default"
    rules = read_policy(find_yaml(name, "evals/policies", "policy"))
    verdict = decide(report, rules, require or [])
    folder = report if report.is_dir() else report.parent
    target = out or folder
    result = read_artifact(folder / REPORT_NAME if report.is_dir() else report, EvalReport)
    written = write_outputs(verdict, result, target)
    page = write_report(
        folder,
        verdict=verdict,
        manifests=find_manifests(result),
        plan=plan or find_plan(folder),
        out=target,
        examples=examples,
    )
    if as_json:
        typer.echo(verdict.to_json(), nl=False)
    else:
        _show(verdict)
    say(f"wrote {', '.join(str(path) for path in [*written, page])}")
    raise typer.Exit(EXIT_CODES[verdict.outcome])


def _show(verdict: Verdict) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("task class", "candidate", "outcome", "goes to", "reason")
    for judged in verdict.classes:
        table.add_row(
            Text(judged.task_class),
            Text(judged.candidate),
            Text(judged.outcome.value, style=_STYLES[judged.outcome]),
            Text(verdict.routing[judged.task_class]),
            Text(judged.reason),
        )
    console = results()
    console.print(table)
    for error in verdict.errors:
        console.print(Text(f"ERROR: {error}", style=_STYLES[Outcome.ERROR]))
    console.print(Text(f"{verdict.outcome.value}: {verdict.decision}", style="bold"))
