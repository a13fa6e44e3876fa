"""`qdeploy train`: carry out a training recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qdeploy.cli.project import find_project, require


def train(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe: a YAML file. Default: the project's.")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(help="GPUs (with cpu: processes) instead of the recipe's.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show layout, memory and commands; train nothing.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last complete checkpoint.")
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge the adapters into the model, after training.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Train by a recipe, measured against the plan.

    Exit codes: 0 done, 1 training failed, or the dry run does not fit, 2 bad input.
    """
    from qdeploy.train.recipe import read_recipe

    project = find_project()
    own = project.train.recipe if project and project.train else None
    path = Path(require(str(recipe) if recipe else own, "recipe", "RECIPE"))
    if dry_run:
        raise typer.Exit(_show(path, nproc, as_json=json_))
    from qdeploy.train.launch import run
    from qdeploy.train.output import REPORT, check_mergeable, merge_result, result_folder

    read = read_recipe(path)
    if merge:
        check_mergeable(read)
    adapters = read.peft is not None and result_folder(read).is_dir()
    if not (merge and adapters and not resume):
        code = run(path, nproc=nproc, resume=resume)
        if code:
            raise typer.Exit(code)
        _draw(Path(read.out) / REPORT)
    folder = merge_result(read) if merge else result_folder(read)
    report = Path(read.out) / REPORT
    if json_:
        typer.echo(report.read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{folder}\n{report}")


def _draw(report: Path) -> None:
    """The curves and the memory of the run, beside its report."""
    from qdeploy.core.artifacts import read_artifact, write_text
    from qdeploy.report.charts.training import training_svg
    from qdeploy.train.report import TrainReport

    write_text(report.with_suffix(".svg"), training_svg(read_artifact(report, TrainReport)))


def _show(path: Path, nproc: int | None, *, as_json: bool) -> int:
    from qdeploy.train.dry_run import dry_run
    from qdeploy.train.recipe import read_recipe
    from qdeploy.train.render import render_dry_run

    made = dry_run(read_recipe(path), path, processes=nproc)
    if as_json:
        document = made.model_dump(mode="json", by_alias=True)
        typer.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        typer.echo("\n".join(render_dry_run(made, path)))
    return 1 if made.fits is False else 0
