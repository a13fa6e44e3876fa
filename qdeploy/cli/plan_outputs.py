"""What `qdeploy train-plan` does with its options: one of its questions, answered and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from qdeploy.cli.plan_options import PlanOptions
from qdeploy.core.console import results, warn
from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema
from qdeploy.models.shape import ModelShape
from qdeploy.plan import Plan, PlanRequest, plan


def run(options: PlanOptions) -> int:
    """Answer, and return the exit code: 0 fits (or explained), 1 nothing fits (or a lint error).

    Raises InputError for bad input, before anything is written.
    """
    if options.explain_oom is not None:
        return _explain_oom(options, options.explain_oom)
    request, warnings = _request(options)
    for warning in warnings:
        warn(warning)
    _check_outputs(options)
    if options.ds_config is not None:
        return _lint(options, request, options.ds_config)
    if options.frontier or options.frontier_out is not None:
        return _frontier(options, request)
    if options.ledger:
        return _ledger(options, request)
    if options.trace:
        return _trace(options, request)
    return _plan(options, request)


def _request(options: PlanOptions) -> tuple[PlanRequest, list[str]]:
    if options.recipe is None:
        return options.request()
    from qdeploy.train.recipe import read_recipe
    from qdeploy.train.request import request_of

    return request_of(read_recipe(options.recipe)), []


def _check_outputs(options: PlanOptions) -> None:
    """Refuse what would overwrite something, before the work."""
    from qdeploy.core.artifacts import refuse_existing

    for path in (options.recipe_out, options.emit_out, options.frontier_out):
        if path is not None:
            refuse_existing(path)
    if options.emit_out is not None and options.emit is None:
        raise InputError("--emit-out says where, but not what", hint="give --emit too")


def _plan(options: PlanOptions, request: PlanRequest) -> int:
    from qdeploy.plan.render import print_plan

    result = plan(request)
    if options.out is not None:
        result.write(options.out)
    if options.recipe_out is not None:
        _write_recipe(options, _with_model(result, request), options.recipe_out)
    if options.emit is not None:
        return _emit(options, _with_model(result, request), options.emit)
    if options.json:
        typer.echo(result.to_json(), nl=False)
    else:
        print_plan(result)
    return 0 if result.chosen else 1


def _with_model(result: Plan, request: PlanRequest) -> Plan:
    """The plan with the model as it was given: a folder that another program is to find."""
    if isinstance(request.model, ModelShape):
        return result
    asked = dataclasses.replace(result.request, model=str(request.model))
    return result.model_copy(update={"request": asked})


def _write_recipe(options: PlanOptions, result: Plan, path: Path) -> None:
    from qdeploy.train.from_plan import origin, recipe_from_plan, write_recipe

    recipe = recipe_from_plan(result, options.data)
    write_recipe(recipe, path, comments=origin(result))


def _emit(options: PlanOptions, result: Plan, name: str) -> int:
    from qdeploy.plan.emit import find_emitter

    files = find_emitter(name).emit(result)
    if options.emit_out is None:
        if options.json:
            _print_json({"files": files})
            return 0
        for file, text in files.items():
            heading = f"# {file}\n" if len(files) > 1 else ""
            typer.echo(heading + text, nl=False)
        return 0
    from qdeploy.core.artifacts import new_folder

    with new_folder(options.emit_out) as folder:
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    return 0


def _lint(options: PlanOptions, request: PlanRequest, path: Path) -> int:
    from qdeploy.plan.lint import lint, read_ds_config
    from qdeploy.plan.lint.run import request_with
    from qdeploy.plan.render import findings_table, print_plan

    config = read_ds_config(path)
    findings = lint(config, request)
    stops = any(finding.severity == "error" for finding in findings)
    result = None if stops else plan(request_with(config, request))
    if options.json:
        document = {"ds_config": str(path), "findings": findings, "plan": result}
        _print_json(document)
    else:
        results().print(findings_table(findings, str(path)))
        if result is not None:
            print_plan(result)
    return 0 if result is not None and result.chosen else 1


def _explain_oom(options: PlanOptions, path: Path) -> int:
    from qdeploy.plan.oom import explain, read_log, render_explanation

    request = options.request()[0] if options.names_a_run else None
    explanation = explain(read_log(path), request)
    if options.json:
        typer.echo(explanation.to_json(), nl=False)
    else:
        for line in render_explanation(explanation):
            typer.echo(line)
    return 0


def _frontier(options: PlanOptions, request: PlanRequest) -> int:
    from qdeploy.plan.frontier import frontier, frontier_table

    found = frontier(request)
    if options.frontier_out is not None:
        from qdeploy.core.artifacts import write_text
        from qdeploy.report.charts.frontier import frontier_svg

        write_text(options.frontier_out, frontier_svg(found))
    if options.json:
        _print_json(found)
    else:
        results().print(frontier_table(found))
    return 0 if found.fits else 1


def _ledger(options: PlanOptions, request: PlanRequest) -> int:
    from qdeploy.cli.project import find_project
    from qdeploy.plan.ledger import ServingTarget, ledger, ledger_table

    project = find_project()
    target = project.target if project else None
    serving = ServingTarget(**target.model_dump()) if target else None
    found = ledger(request, serving, disk_bytes=options.disk_bytes())
    if options.json:
        _print_json(found)
    else:
        results().print(ledger_table(found))
    return 0 if found.fits else 1


def _trace(options: PlanOptions, request: PlanRequest) -> int:
    from qdeploy.trace import trace_request, trace_table

    found = trace_request(request)
    if options.json:
        _print_json(found)
    else:
        results().print(trace_table(found))
    return 0


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(_plain(value), ensure_ascii=False, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Schema):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value
