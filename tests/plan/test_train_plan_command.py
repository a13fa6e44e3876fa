from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from qdeploy.cli.train_plan import train_plan
from qdeploy.core.errors import InputError, UnknownNameError

app = typer.Typer()
app.command()(train_plan)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_table_shows_every_strategy_and_the_choice() -> None:
    result = run("7B", "--gpus", "4xA100-80GB")
    assert result.exit_code == 0
    for word in ("ddp", "zero1", "zero2", "zero3", "logits", "optim", "take zero2", "BF16"):
        assert word in result.output


def test_json_is_one_document(tmp_path: Path) -> None:
    result = run("llama-2-7b", "--gpus", "2xA100-80GB", "--json", "--out", "plan.json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["schema"] == "qdeploy.plan/1"
    assert document["chosen"]["strategy"] == "zero3"
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")) == document


def test_nothing_fits_is_exit_1() -> None:
    result = run("70B", "--gpus", "1xA100-80GB", "--offload", "none")
    assert result.exit_code == 1
    assert "nothing fits" in result.output
    assert "the smallest change that fits" in result.output


def test_article_in_decimal_gb() -> None:
    result = run("7B", "--gpus", "2xA100-80GB", "--accounting", "article", "--no-checkpointing")
    assert "Memory of one GPU in GB" in result.output
    assert "74.0" in result.output
    assert "95.0" in result.output


def test_bad_input_is_an_input_error() -> None:
    assert isinstance(run("--gpus", "1xL4").exception, InputError)
    assert isinstance(run("7B").exception, InputError)
    assert isinstance(run("7B", "--gpus", "2xA1000").exception, UnknownNameError)
    assert isinstance(run("7B", "--gpus", "L4", "--micro-batch", "0").exception, InputError)


def test_project_file_gives_model_and_gpus(tmp_path: Path) -> None:
    (tmp_path / "qdeploy.yaml").write_text("model: gpt2\ntrain: {gpus: 1xL4}\n", encoding="utf-8")
    result = run("--seq-len", "1024", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["gpu"]["name"] == "L4"


def test_needs_no_torch() -> None:
    code = (
        "import sys; from qdeploy.plan import PlanRequest, plan; import qdeploy.plan.render;"
        "plan(PlanRequest(model='7B', gpu='A100-80GB', gpus=2));"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
