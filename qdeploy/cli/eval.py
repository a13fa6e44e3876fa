"""`qdeploy eval`: run all candidates on the same prompts and compare them in pairs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdeploy.cli.project import find_project
from qdeploy.core.console import results
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
        list[str] | None,
        typer.Option(
            help="Suite of which the baseline answers some items again, for the noise floor; may "
            "be repeated; 'none' for no suite. Default: all."
        ),
    ] = None,
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
        noise=None if noise is None else tuple(name for name in noise if name != "none"),
        overwrite=overwrite,
    )
    report = run_eval(loaders, suites, out, options)
    if json_:
        typer.echo(report.to_json(), nl=False)
    else:
        show(report)


def show(report: EvalReport) -> None:
    """Print the report as a table, one row for each metric of a task class."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("task class", "candidate", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("n", report.baseline, "candidate", "difference", "90 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in report.classes:
        for name, metrics in result.metrics.items():
            for at, metric in enumerate(metrics):
                first = [result.task_class, name] if at == 0 else ["", ""]
                table.add_row(*first, *_cells(metric))
    console = results()
    console.print(table)
    for result in report.classes:
        if not result.informative:
            console.print(f"{result.task_class} is uninformative: {result.reason}")
    for screened in report.screens:
        console.print(
            f"{screened.candidate}: KL {screened.kl_mean:.4f} nats, top-1 agreement "
            f"{screened.top1_agreement:.1%} on {screened.tokens} tokens of the baseline's answers"
        )


def _cells(metric: MetricResult) -> list[str]:
    means = [f"{value:.3f}" for value in (metric.baseline, metric.candidate)]
    interval = f"{metric.low:+.3f} to {metric.high:+.3f}"
    return [metric.metric, str(metric.n), *means, f"{metric.difference:+.3f}", interval]
