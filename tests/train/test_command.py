"""`qdeploy train` without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from qdeploy.cli.main import app

Write = Callable[[dict[str, Any]], Path]


def called(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["train", *arguments])


def test_dry_run(fields: dict[str, Any], write: Write) -> None:
    fields["strategy"] = {"name": "zero2", "offload": "none"}
    path = str(write(fields))
    done = called(path, "--dry-run", "--nproc", "2")
    assert done.exit_code == 0
    assert '"train_batch_size": 8' in done.stdout
    assert f"qdeploy train {path} --nproc 2" in done.stdout
    document = json.loads(called(path, "--dry-run", "--nproc", "2", "--json").stdout)
    assert document["global_batch"] == 8
    assert document["deepspeed"]["zero_optimization"]["stage"] == 2
    assert not Path(fields["out"]).exists()


def test_dry_run_of_what_does_not_fit(fields: dict[str, Any], write: Write) -> None:
    fields["hardware"] = {"gpu": "A10", "gpus": 1}
    fields |= {"model": "70B", "precision": "bf16"}
    done = called(str(write(fields)), "--dry-run")
    assert done.exit_code == 1
    assert "does not fit" in done.stdout


def test_the_projects_recipe(
    fields: dict[str, Any], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = called("--dry-run")
    assert missing.exit_code == 2
    assert "no recipe given" in missing.stderr
    path = write(fields)
    project = {"model": fields["model"], "train": {"gpus": "1xA10", "recipe": path.name}}
    (tmp_path / "qdeploy.yaml").write_text(yaml.safe_dump(project))
    assert called("--dry-run").exit_code == 0


def test_merging_needs_adapters(fields: dict[str, Any], write: Write) -> None:
    from qdeploy.core.errors import InputError
    from qdeploy.train.output import merge_result
    from qdeploy.train.recipe import read_recipe

    with pytest.raises(InputError, match="nothing to merge"):
        merge_result(read_recipe(write(fields)))
    fields["peft"] = {"kind": "lora"}
    with pytest.raises(InputError, match="no adapters"):
        merge_result(read_recipe(write(fields)))


def test_an_unknown_key_is_named(fields: dict[str, Any], write: Write) -> None:
    fields["stepz"] = 3
    done = called(str(write(fields)), "--dry-run")
    assert done.exit_code == 2
    assert "'steps'" in done.stderr
