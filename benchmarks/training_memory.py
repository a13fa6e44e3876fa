"""Planned against measured memory of training on two CPU processes, as a Markdown table.

    python benchmarks/training_memory.py [--model FOLDER] [--tokens N] [--precision bf16|fp32]
        [--strategies ddp,zero1,zero2,zero3] [--accumulation 1,4] [--tuned full,lora]

States (weights, masters, optimizer) are held against the tensors that the engine holds, byte for
byte. The peak is that of the fuller process above what it had before the model was loaded. Without
BF16 products in hardware (AVX512-BF16, AMX) a step in BF16 takes minutes: give few tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from machine import describe

from qdeploy.cli.demo_model import demo_model
from qdeploy.plan.job import make_job
from qdeploy.plan.moments import moments
from qdeploy.train.dry_run import dry_run
from qdeploy.train.recipe import Recipe, read_recipe
from qdeploy.train.report import TrainReport, collect
from qdeploy.train.request import layout_of, run_request

RANKS, STEPS = 2, 2
_RANK = Path(__file__).with_name("training_memory_rank.py")
_HEAD = (
    "| strategy | accumulation | checkpointing | trained | states planned | states held | "
    "gradients planned | held | at step planned | held | peak planned | measured | ratio |\n"
    "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    strategy: str
    accumulation: int
    checkpointing: bool
    trained: str


def recipe_of(case: Case, options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The recipe of a case."""
    return {
        "model": str(options.model),
        "out": str(out),
        "data": {"path": "random tokens", "seq_len": options.tokens},
        "hardware": {"gpu": "cpu", "gpus": RANKS},
        "steps": STEPS,
        "precision": options.precision,
        "loss": "trl",
        "batch": {"micro_batch": 1, "accumulation_steps": case.accumulation},
        "strategy": {"name": case.strategy, "offload": "none"},
        "checkpointing": {"enabled": case.checkpointing},
        "peft": {"kind": "lora", "rank": 16} if case.trained == "lora" else None,
    }


def planned_states(recipe: Recipe, parts: dict[str, int]) -> int:
    """What stays between steps; autocast's copy of FP32 weights does not."""
    masters = parts["master_weights"]
    copied = layout_of(recipe).casts_weights and masters > 0
    return masters + parts["optimizer"] + (0 if copied else parts["weights"])


def run(case: Case, options: argparse.Namespace, folder: Path) -> tuple[Recipe, TrainReport, Any]:
    """Train the case; its recipe, its report and what each rank held."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe_of(case, options, folder / "out")), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(RANKS)]
    environment = {
        "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // RANKS)),
        "HF_HUB_OFFLINE": "1", **os.environ,
    }  # fmt: skip
    done = subprocess.run(
        [*command, str(_RANK), str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{case} failed:\n{done.stderr[-4000:]}")
    made = dry_run(read_recipe(path))
    report = collect(folder / "out", planned=made.candidate, world=RANKS, inputs={})
    held = [json.loads((folder / "out" / f"held-{rank}.json").read_text()) for rank in range(RANKS)]
    return made.recipe, report, held


def row(case: Case, recipe: Recipe, report: TrainReport, held: list[dict[str, int]]) -> str:
    """The case as a row of the table; of both ranks the fuller one."""
    parts = moments(make_job(run_request(recipe)), layout_of(recipe))
    states = [
        rank["weights_bytes"] + rank["master_weights_bytes"] + rank["optimizer_bytes"]
        for rank in held
    ]
    end, step = parts["end"], parts["step"]
    numbers = [
        planned_states(recipe, end),
        max(states),
        end["gradients"],
        max(rank["gradients_bytes"] for rank in held),
        step["gradients"],
        max(rank["at_step_bytes"] for rank in held),
        report.planned_bytes,
        report.measured_bytes,
    ]
    cells = [
        case.strategy,
        str(case.accumulation),
        "on" if case.checkpointing else "off",
        case.trained,
        *(f"{number:,}" for number in numbers),
        f"{report.measured_bytes / report.planned_bytes:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--strategies", default="ddp,zero1,zero2,zero3")
    parser.add_argument("--accumulation", default="1,4")
    parser.add_argument("--checkpointing", default="on,off")
    parser.add_argument("--tuned", default="full,lora")
    options = parser.parse_args()
    options.model = (options.model or demo_model()).resolve()
    return options


def main() -> None:
    """Print the table, a row as soon as it is measured."""
    options = _options()
    print(describe(), f"; {RANKS} ranks, {options.tokens} tokens, {options.precision}", sep="")
    print(_HEAD, flush=True)
    for strategy, accumulation, checkpointing, trained in itertools.product(
        options.strategies.split(","),
        map(int, options.accumulation.split(",")),
        options.checkpointing.split(","),
        options.tuned.split(","),
    ):
        case = Case(strategy, accumulation, checkpointing == "on", trained)
        with tempfile.TemporaryDirectory() as scratch:
            print(row(case, *run(case, options, Path(scratch))), flush=True)


if __name__ == "__main__":
    main()
