from __future__ import annotations

from pathlib import Path

import pytest

from qdeploy.core.errors import InputError
from qdeploy.train.checkpoints import (
    STAGING,
    check_same_run,
    complete,
    discard_staging,
    latest,
    staging_step,
)

RUN = {"recipe": "a", "data": "b", "model": "c"}


def stage(folder: Path, step: int) -> None:
    staged = staging_step(folder, step)
    (staged / "inner").mkdir(parents=True)
    (staged / "weights.bin").write_bytes(b"1234")
    (staged / "inner" / "empty.bin").write_bytes(b"")


def test_only_what_is_complete_is_found(tmp_path: Path) -> None:
    assert latest(tmp_path / "missing") is None
    stage(tmp_path, 3)
    assert latest(tmp_path) is None
    path = complete(tmp_path, 3, RUN, keep=2)
    assert path == tmp_path / "checkpoint-3"
    assert not (tmp_path / STAGING).exists()
    stage(tmp_path, 4)
    found = latest(tmp_path)
    assert found is not None
    assert (found[0], found[1].step) == (path, 3)
    assert found[1].files == {"inner/empty.bin": 0, "weights.bin": 4}
    discard_staging(tmp_path)
    discard_staging(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint-3"]


@pytest.mark.parametrize("damage", ["shorter", "missing", "marker"])
def test_a_damaged_one_is_passed_by(tmp_path: Path, damage: str) -> None:
    for step in (2, 10):
        stage(tmp_path, step)
        complete(tmp_path, step, RUN, keep=2)
    newest = tmp_path / "checkpoint-10"
    if damage == "shorter":
        (newest / "weights.bin").write_bytes(b"123")
    else:
        (newest / {"missing": "weights.bin", "marker": "qdeploy_checkpoint.json"}[damage]).unlink()
    found = latest(tmp_path)
    assert found is not None
    assert found[0].name == "checkpoint-2"


def test_the_newest_are_kept_by_number(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-final").mkdir()
    for step in (1, 9, 10, 11):
        stage(tmp_path, step)
        complete(tmp_path, step, RUN, keep=2)
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["checkpoint-10", "checkpoint-11", "checkpoint-final"]


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    for _ in range(2):
        stage(tmp_path, 5)
        complete(tmp_path, 5, RUN, keep=1)
    assert latest(tmp_path) is not None


def test_another_run_is_refused(tmp_path: Path) -> None:
    stage(tmp_path, 1)
    complete(tmp_path, 1, RUN, keep=1)
    found = latest(tmp_path)
    assert found is not None
    check_same_run(*found, RUN)
    with pytest.raises(InputError, match="another data and model"):
        check_same_run(*found, {**RUN, "data": "x", "model": "y"})
