from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from qdeploy.cli.init import project_text
from qdeploy.cli.main import app
from qdeploy.cli.project import Project, find_project, require
from qdeploy.core.errors import InputError

runner = CliRunner()


def test_init_writes_a_project_that_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "项目 one"
    result = runner.invoke(app, ["init", str(folder), "--model", "./models/我的 模型"])
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in folder.iterdir()) == ["artifacts", "data", "qdeploy.yaml"]
    monkeypatch.chdir(folder)
    project = find_project()
    assert project is not None
    assert project.model == "./models/我的 模型"
    assert list(project.candidates) == ["int8", "bf16"]
    assert project.candidates["int8"].folder == "artifacts/int8"


def test_init_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "qdeploy.yaml").write_text("mine")
    result = runner.invoke(app, ["init", str(tmp_path)])
    assert result.exit_code == 2
    assert (tmp_path / "qdeploy.yaml").read_text() == "mine"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("model", ["it's", "a: b", "#x", "123", "true", "org/name-1.5", "路径"])
def test_any_model_path_survives_yaml(model: str) -> None:
    project = Project.model_validate(yaml.safe_load(project_text(model)))
    assert project.model == model


def test_malformed_project_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qdeploy.yaml").write_text("model: x\ncandidate: {}\n")
    with pytest.raises(InputError, match="did you mean 'candidates'"):
        find_project()
    (tmp_path / "qdeploy.yaml").write_text("model: x\ncandidates: {a: {scheme: int8}}\n")
    with pytest.raises(InputError, match="either 'model', or 'scheme' and 'out'"):
        find_project()


def test_require_says_what_to_do() -> None:
    assert require("x", "model", "MODEL") == "x"
    with pytest.raises(InputError, match=r"no model given, and no qdeploy\.yaml here names one"):
        require(None, "model", "MODEL")
