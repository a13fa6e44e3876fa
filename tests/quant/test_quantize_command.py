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
    ("options", "message"),
    [
        ({}, "--calib"),
        ({"--calib": "d"}, "no output folder"),
        ({"--calib": "d", "--out": "o", "--scheme": "int9"}, "did you mean 'int8'"),
    ],
)
def test_bad_input(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    arguments = [part for option in options.items() for part in option]
    run = CliRunner().invoke(app, ["quantize", str(tiny_llama), *arguments])
    assert run.exit_code == 2
    assert message in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["quantize"])
    assert run.exit_code == 2
    assert "no model given" in run.stderr
