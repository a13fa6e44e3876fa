"""Small chats, recipes and finished runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ANSWERS = [
    "The parcel arrives on Tuesday.",
    "Read the passage and answer with the exact words, please.",
    "包裹预计星期二上午送达。",
    "Order number KX-4471, 3 May, $48.20.",
]


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen chats of one or two answers, of different lengths."""
    rows = []
    for number in range(16):
        answer = " ".join([ANSWERS[number % 4]] * (1 + number % 3))
        messages = [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": answer},
        ]
        if number % 5 == 0:
            messages += [
                {"role": "user", "content": "And then?"},
                {"role": "assistant", "content": ANSWERS[(number + 1) % 4]},
            ]
        rows.append({"messages": messages})
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


@pytest.fixture
def fields(tiny_llama: Path, chats: Path, tmp_path: Path) -> dict[str, Any]:
    """A recipe for one CPU process: four steps in FP32."""
    return {
        "model": str(tiny_llama),
        "data": {"path": str(chats), "seq_len": 128},
        "hardware": {"gpu": "cpu", "gpus": 1},
        "out": str(tmp_path / "out"),
        "steps": 4,
        "precision": "fp32",
        "optimizer": {"lr": 1e-2},
        "schedule": {"kind": "linear", "warmup": 0.0},
        "batch": {"micro_batch": 2, "accumulation_steps": 2},
        "strategy": {"name": "none", "offload": "none"},
        "checkpointing": {"enabled": False},
        "save": {"every_steps": 100},
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a recipe; the name of its `out` is the file's."""

    def written(document: dict[str, Any]) -> Path:
        path = tmp_path / f"{Path(document['out']).name}.yaml"
        path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
        return path

    return written


def _start(recipe: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "qdeploy", "train", str(recipe), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=recipe.parent,
    )


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Starts `qdeploy train RECIPE` with options."""
    return _start


@pytest.fixture
def train() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `qdeploy train RECIPE` with options to its end."""

    def run(recipe: Path, *options: str) -> subprocess.CompletedProcess[str]:
        process = _start(recipe, *options)
        out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a recipe of one process in this one: (exit code, stderr)."""
    from accelerate.state import AcceleratorState

    from qdeploy.train.worker import main

    # The worker takes stdout away from libraries, for the whole of its process.
    monkeypatch.setattr(sys, "stdout", sys.stdout)

    def run(recipe: Path, *options: str) -> tuple[int, str]:
        AcceleratorState._reset_state(reset_partial_state=True)
        capfd.readouterr()
        code = main([str(recipe), *options])
        return code, capfd.readouterr().err

    yield run
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def losses() -> Callable[[Path], dict[int, float]]:
    """Step -> loss, from the report of a run."""

    def read(out: Path) -> dict[int, float]:
        report = json.loads((out / "train_report.json").read_text(encoding="utf-8"))
        return {point["step"]: point["loss"] for point in report["loss"]}

    return read
