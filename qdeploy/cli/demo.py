"""`qdeploy demo`: the whole way on a small real model, with the commands that a user would run."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from qdeploy.cli.demo_model import ABOUT, demo_model
from qdeploy.cli.init import project_text
from qdeploy.core.artifacts import refuse_existing, write_text
from qdeploy.core.console import say, stderr
from qdeploy.core.errors import RunError
from qdeploy.core.shipped import shipped
from qdeploy.core.units import format_seconds

# What two cores do in a few minutes.
_LIMITS = ["16", "short_qa.en=72", "long_generation.en=12", "zh=2"]
_CHEAPER = ["--max-new-tokens", "192", "--noise", "short_qa", "--noise", "classification"]


def demo(
    model: Annotated[
        str | None, typer.Option(help="Model folder or hub id instead of the demo's own.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Project folder to write; default demo/TIME.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="As of qdeploy eval; more items make the verdict surer. Default: "
            f"{', '.join(_LIMITS)} (the demo's model hardly knows Chinese)."
        ),
    ] = None,
    fetch_only: Annotated[
        bool, typer.Option("--fetch-only", help="Print the folder of the demo's model and stop.")
    ] = False,
) -> None:
    """Plan, quantize, evaluate and gate a small real model on a CPU, in a few minutes."""
    start = time.monotonic()
    if fetch_only:
        typer.echo(demo_model())
        return
    project = folder or Path("demo") / datetime.now().strftime("%Y%m%d-%H%M%S")
    refuse_existing(project)
    source = model or str(demo_model())
    say(f"model: {source if model else ABOUT}")
    local = Path(source)
    write_text(
        project / "qdeploy.yaml",
        project_text(str(local.resolve()) if local.is_dir() else source, str(shipped("calib"))),
    )
    say(f"project folder: {project}")
    for title, arguments in _steps(limit or _LIMITS):
        _run_step(title, arguments, project)
    say(f"\nfinished in {format_seconds(time.monotonic() - start)}")
    say(f"report: {project / 'artifacts/eval/report.html'}")


def _steps(limits: list[str]) -> list[tuple[str, list[str]]]:
    """Titles and arguments of the commands, in order."""
    limited = [word for limit in limits for word in ("--limit", limit)]
    return [
        ("Will a 7B train on two A100-80GB?", ["train-plan", "7B", "--gpus", "2xA100-80GB"]),
        ("And on four?", ["train-plan", "7B", "--gpus", "4xA100-80GB"]),
        (
            "And the demo's model on one RTX 4090?",
            ["train-plan", "--gpus", "1xRTX-4090", "--out", "artifacts/plan.json"],
        ),
        ("Quantize to INT8, calibrated on business data", ["quantize", "--samples", "16"]),
        (
            "Compare BF16 and INT8 on the same prompts",
            ["eval", "--compare", "bf16,int8", *_CHEAPER, *limited],
        ),
        ("Decide", ["gate"]),
    ]


def _run_step(title: str, arguments: list[str], project: Path) -> None:
    """One command in the project folder. Any exit code but 2 is a result, not a failure."""
    stderr().rule(f"[bold]{title}")
    say(f"$ qdeploy {' '.join(arguments)}")
    process = subprocess.Popen([sys.executable, "-m", "qdeploy", *arguments], cwd=project)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # The command cleans up by itself; subprocess.run would kill it before it has.
        process.terminate()
        process.wait()
        raise
    if code not in (0, 1, 3):
        raise RunError(
            f"'qdeploy {' '.join(arguments)}' ended with exit code {code}",
            hint=f"run it again in {project} to see what is wrong",
        )
