"""`qdeploy schema NAME`: the JSON Schema of a file that qdeploy reads or writes."""

from __future__ import annotations

import importlib
import json
from typing import Annotated

import typer

from qdeploy.core.errors import UnknownNameError
from qdeploy.core.schema import Schema

_SCHEMAS = {
    "project": ("qdeploy.cli.project", "Project"),
    "calib-audit": ("qdeploy.calib.audit", "CalibAudit"),
    "plan": ("qdeploy.plan.schema", "Plan"),
    "recipe": ("qdeploy.train.recipe", "Recipe"),
    "oom": ("qdeploy.plan.oom.schema", "Explanation"),
    "scheme": ("qdeploy.core.scheme", "Scheme"),
    "quant-manifest": ("qdeploy.quant.manifest", "QuantManifest"),
    "suite": ("qdeploy.evals.suite", "SuiteSpec"),
    "eval-report": ("qdeploy.evals.results", "EvalReport"),
    "policy": ("qdeploy.gate.policy", "Policy"),
    "verdict": ("qdeploy.gate.verdict", "Verdict"),
    "blessing": ("qdeploy.gate.verdict", "Blessing"),
}


def schema(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(_SCHEMAS)}.")],
) -> None:
    """Print the JSON Schema of a file, for editors that complete YAML and JSON."""
    if name not in _SCHEMAS:
        raise UnknownNameError("schema", name, _SCHEMAS)
    module, attribute = _SCHEMAS[name]
    kind: type[Schema] = getattr(importlib.import_module(module), attribute)
    typer.echo(json.dumps(kind.model_json_schema(by_alias=True), ensure_ascii=False, indent=2))
