"""`qdeploy quantize` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdeploy.cli.main import app


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"text": "The parcel arrives on Tuesday."}, {"text": "包裹星期二送达。"}]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    return path


def test_quantize_prints_a_summary_or_the_manifest(
    tiny_llama: Path, data: Path, tmp_path: Path
) -> None:
    arguments = ["quantize", str(tiny_llama), "--calib", str(data), "--samples", "2"]
    run = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "a")])
    assert run.exit_code == 0, run.output
    assert "14 layers" in run.stdout
    assert "all equal" in run.stdout
    run = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "b"), "--json"])
    manifest = json.loads(run.stdout)
    assert manifest["schema"] == "qdeploy.quant_manifest/1"
    assert manifest["calibration"]["samples"] == 2
    again = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "b")])
    assert again.exit_code == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL is missing"),
        (["m"], "--calib is missing"),
        (["m", "--calib", "d"], "--out is missing"),
        (["m", "--calib", "d", "--out", "o", "--scheme", "int9"], "did you mean 'int8'"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    run = CliRunner().invoke(app, ["quantize", *arguments])
    assert run.exit_code == 2
    assert message in run.stderr
