from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from qdeploy.cli.gate import gate

app = typer.Typer()
app.command()(gate)


def _evaluation(factory: Any, folder: Path, n: int = 60, lost: int = 0, **changes: Any) -> Path:
    items = factory.Items("short_qa", "en", n=n)
    items.scores["int8"] = factory.worse("contains", range(lost))
    candidates = [factory.info("bf16"), factory.info("int8", **changes)]
    written: Path = factory.write_evaluation(folder, [items], candidates)
    return written


@pytest.mark.parametrize(
    ("n", "lost", "changes", "code", "word"),
    [
        (60, 0, {}, 0, "PASS"),
        (60, 40, {}, 1, "FAIL"),
        (60, 0, {"manifest_matches": False}, 2, "ERROR"),
        (20, 0, {}, 3, "INCONCLUSIVE"),
    ],
)
def test_each_outcome_has_its_exit_code(
    factory: Any, tmp_path: Path, n: int, lost: int, changes: dict[str, Any], code: int, word: str
) -> None:
    folder = _evaluation(factory, tmp_path, n, lost, **changes)
    result = CliRunner().invoke(app, [str(folder)])
    assert result.exit_code == code
    assert f"{word}: " in result.stdout
    for name in ("verdict.json", "junit.xml", "summary.md", "report.html", "report.md"):
        assert (folder / name).is_file()
    assert (folder / "blessing.json").is_file() == (word == "PASS")
    assert word in (folder / "report.html").read_text("utf-8")


def test_json_is_the_only_thing_on_stdout_and_out_takes_the_files(
    factory: Any, tmp_path: Path
) -> None:
    folder = _evaluation(factory, tmp_path / "eval")
    out = tmp_path / "out"
    report = str(folder / "eval_report.json")
    result = CliRunner().invoke(app, [report, "--json", "--require", "int8", "--out", str(out)])
    assert result.exit_code == 0
    verdict = json.loads(result.stdout)
    assert verdict["outcome"] == "PASS"
    assert verdict["required"] == ["int8"]
    assert (out / "verdict.json").read_text("utf-8") == result.stdout
    assert (out / "report.html").is_file()
    assert not (folder / "verdict.json").exists()


def test_the_gate_needs_no_torch(factory: Any, tmp_path: Path) -> None:
    folder = _evaluation(factory, tmp_path)
    script = (
        "import sys, typer\nfrom qdeploy.cli.gate import gate\n"
        "app = typer.Typer(); app.command()(gate)\n"
        f"try:\n    app([{str(folder)!r}])\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'transformers', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
