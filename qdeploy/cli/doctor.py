"""`qdeploy doctor`: what this machine has, and what each stage can use of it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from qdeploy.core.units import format_bytes

_PACKAGES = (
    "torch", "transformers", "compressed-tensors", "safetensors", "accelerate",
    "gguf", "trl", "deepspeed", "peft", "bitsandbytes",
)  # fmt: skip


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show GPU, BF16 support, packages, disk, memory, and what each stage can use here."""
    facts = examine(Path())
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    for title, rows in facts.items():
        typer.secho(title, bold=True)
        for name, value in rows.items():
            typer.echo(f"  {name:<20} {value}")


def examine(folder: Path) -> dict[str, dict[str, Any]]:
    """Facts about this machine by section; `folder` is where artifacts would be written."""
    import psutil

    packages = {name: _version(name) or "not installed" for name in _PACKAGES}
    memory = psutil.virtual_memory()
    machine = {
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{format_bytes(memory.available)} free of {format_bytes(memory.total)}",
        "disk": f"{format_bytes(shutil.disk_usage(folder).free)} free in {folder.resolve()}",
    }
    gpus = _gpus()
    return {
        "machine": machine,
        "gpus": gpus or {"none": "all stages run on the CPU"},
        "packages": packages,
        "stages": _stages(packages, bool(gpus)),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpus() -> dict[str, str]:
    import torch

    found = {}
    for index in range(torch.cuda.device_count()):
        props = torch.cuda.get_device_properties(index)
        # Not torch.cuda.is_bf16_supported(): that also says yes to slow emulation.
        bf16 = "BF16" if props.major >= 8 else "no BF16: train and serve in FP16"
        found[f"cuda:{index}"] = (
            f"{props.name}, {format_bytes(props.total_memory)}, "
            f"compute capability {props.major}.{props.minor}, {bf16}"
        )
    return found


def _stages(packages: dict[str, str], has_gpu: bool) -> dict[str, str]:
    import torch

    where = "on the GPU" if has_gpu else "on the CPU"
    cpu = torch.backends.cpu.get_cpu_capability()
    demo = "ready" if packages["gguf"] != "not installed" else "needs: pip install qdeploy[demo]"
    return {
        "train-plan, gate": "ready; need neither torch nor a GPU",
        "quantize": f"ready, {where}, one block in memory at a time",
        "eval": f"ready, {where} ({cpu})",
        "demo": demo,
    }
