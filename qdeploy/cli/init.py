"""`qdeploy init`: a project file and its folders; never overwrites anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from qdeploy.cli.project import PROJECT_NAME
from qdeploy.core.artifacts import write_text
from qdeploy.core.console import say
from qdeploy.core.errors import InputError
from qdeploy.core.shipped import shipped

_TEMPLATE = """\
# What qdeploy's bare commands work on; options on the command line override it.
model: {model}            # a local folder in Hugging Face layout, or a hub id
target: {{gpu: A100-80GB, count: 1, concurrency: 16, context: 4096}}   # where it will be served
train: {{gpus: 4xA100-80GB}}
calib: {{data: {data}}}
candidates:               # names used by --compare and by the gate, cheapest first
  int8: {{scheme: int8, out: artifacts/int8}}
  bf16: {{model: {model}}}
evals: {{suites: [{suites}]}}   # shipped ones by name, your own by path
policy: default
"""


def project_text(model: str, data: str = "data") -> str:
    """The text of a new project file for `model` and the calibration data in `data`."""
    suites = ", ".join(sorted(path.stem for path in shipped("evals").glob("*.yaml")))
    return _TEMPLATE.format(model=_quoted(model), data=_quoted(data), suites=suites)


def _quoted(text: str) -> str:
    """`text` as a YAML scalar: plain where it is a simple path, else single-quoted."""
    simple = re.fullmatch(r"[\w./-]+", text, re.ASCII) and "/" in text
    return text if simple else "'" + text.replace("'", "''") + "'"


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
    model: Annotated[
        str, typer.Option(help="Model folder or hub id to write into the project file.")
    ] = "./models/my-model",
) -> None:
    """Write qdeploy.yaml and the folders data/ and artifacts/; never overwrite."""
    path = folder / PROJECT_NAME
    if path.exists():
        raise InputError(
            f"{path} already exists", hint="edit it, or run qdeploy init in another folder"
        )
    for name in ("data", "artifacts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_text(path, project_text(model))
    say(f"wrote {path}; next: put your calibration data into {folder / 'data'}, then run")
    say("  qdeploy train-plan, qdeploy quantize, qdeploy eval --compare bf16,int8, qdeploy gate")
