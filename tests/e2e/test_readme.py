"""The README's commands, as they stand there, on a small random model."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdeploy.cli.main import app

ROOT = Path(__file__).parents[2]
runner = CliRunner()


def _blocks(name: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def _commands(block: str) -> list[list[str]]:
    """The block's commands without their comments."""
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [line for line in lines if line]


def test_both_readmes_name_the_same_commands() -> None:
    english, chinese = _blocks("README.md"), _blocks("README.zh-CN.md")
    assert [_commands(b) for b in english] == [_commands(b) for b in chinese]
    inline = [
        sorted(re.findall(r"`(qdeploy [^`]+)`", (ROOT / name).read_text(encoding="utf-8")))
        for name in ("README.md", "README.zh-CN.md")
    ]
    assert inline[0] == inline[1]


def test_links_lead_somewhere() -> None:
    for name in ("README.md", "README.zh-CN.md", "docs/architecture.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / name).parent.joinpath(link).exists(), f"{name}: {link}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in _commands(_blocks("README.md")[0]):
        assert words[0] == "make"
        assert f"\n{words[1]}:" in makefile


def test_the_project_commands_work(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-project" / "models").mkdir(parents=True)
    shutil.copytree(tiny_llama, tmp_path / "my-project" / "models" / "my-model")
    for words in _commands(_blocks("README.md")[1]):
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            shutil.copy(ROOT / "calib" / "brightwater_zh.jsonl", "data")
            continue
        arguments = ["4" if word == "60" else word for word in words[1:]]
        result = runner.invoke(app, arguments)
        # Four items a class are too few to decide anything.
        expected = 3 if arguments[0] == "gate" else 0
        assert result.exit_code == expected, f"{arguments}: {result.output}"
    written = {path.name for path in Path("artifacts/eval").iterdir()}
    assert {"eval_report.json", "report.html", "verdict.json", "junit.xml"} <= written
    verdict = json.loads(Path("artifacts/eval/verdict.json").read_text(encoding="utf-8"))
    assert verdict["outcome"] == "INCONCLUSIVE"


def test_the_training_commands_up_to_the_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs" / "training.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for words in _commands(blocks[0])[:2]:
        result = runner.invoke(app, words[1:])
        assert result.exit_code == 0, result.output
