"""`qdeploy eval`: run all candidates on the same prompts and compare them in pairs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdeploy.cli.project import find_project
from qdeploy.core.shipped import find_yaml

if TYPE_CHECKING:
    from qdeploy.evals.results import EvalReport, MetricResult

SUITES = ["short_qa", "classification", "extraction", "long_generation"]


def eval_(
    model: Annotated[
        str | None, typer.Argument(help="Model folder that 'bf16', 'fp16' and 'fp32' mean.")
    ] = None,
    compare: Annotated[
        str, typer.Option(help="Candidates by commas, the baseline first: bf16,NAME=FOLDER.")
    ] = "bf16,int8",
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="A shipped suite's name or a YAML file; may be repeated. Default: the project's, "
            f"else {', '.join(SUITES)}."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report and the samples.")] = Path(
        "artifacts/eval"
    ),
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="At most N items of each task class; NAME=N for one task class, suite or "
            "language. May be repeated: --limit 40 --limit zh=8."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Cap on the tokens of an answer; default: the suites'."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw that --limit makes.")] = 0,
    noise: Annotated[
        bool, typer.Option(help="Run the baseline again on some items: the noise floor.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another run's samples in --out.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run all candidates on the same prompts and compare them in pairs."""
    from qdeploy.evals.limits import parse_limits
    from qdeploy.evals.run import CandidateLoader, run_eval
    from qdeploy.evals.run_state import EvalOptions
    from qdeploy.runtime.load import load_candidate
    from qdeploy.runtime.spec import parse_candidate

    project = find_project()
    named = model or (project.model if project else None)
    known = {n: Path(c.folder) for n, c in project.candidates.items()} if project else {}
    texts = [text.strip() for text in compare.split(",")]
    specs = [parse_candidate(text, Path(named) if named else None, known) for text in texts]
    loaders = [
        CandidateLoader(spec.name, partial(load_candidate, spec.name, spec.folder, spec.precision))
        for spec in specs
    ]
    chosen = suite or (project.evals.suites if project and project.evals else SUITES)
    suites = [find_yaml(name, "evals", "suite") for name in chosen]
    options = EvalOptions(
        limits=parse_limits(limit or []),
        max_new_tokens=max_new_tokens,
        seed=seed,
        noise=noise,
        overwrite=overwrite,
    )
    report = run_eval(loaders, suites, out, options)
    if json_:
        typer.echo(report.to_json(), nl=False)
    else:
        show(report)


def show(report: EvalReport) -> None:
    """Print the report as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("task class", "candidate", "metric", "n", "baseline", "candidate", "difference")
    for result in report.classes:
        note = "" if result.informative else " (uninformative)"
        for name, metrics in result.metrics.items():
            for metric in metrics:
                table.add_row(result.task_class + note, name, *_cells(metric))
    Console().print(table)
    for screened in report.screens:
        typer.echo(
            f"{screened.candidate}: KL {screened.kl_mean:.4f} nats, top-1 agreement "
            f"{screened.top1_agreement:.1%} on {screened.tokens} tokens"
        )


def _cells(metric: MetricResult) -> list[str]:
    interval = f"{metric.difference:+.3f} ({metric.low:+.3f} .. {metric.high:+.3f})"
    values = [f"{metric.baseline:.3f}", f"{metric.candidate:.3f}"]
    return [metric.metric, str(metric.n), *values, interval]
