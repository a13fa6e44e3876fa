import hashlib
import json
import os
from pathlib import Path
from typing import ClassVar

import pytest

from qdeploy.core.artifacts import (
    Artifact,
    new_folder,
    read_artifact,
    read_json,
    sha256_file,
    sha256_files,
    write_text,
)
from qdeploy.core.errors import InputError


class Note(Artifact):
    SCHEMA: ClassVar[str] = "qdeploy.note/1"

    text: str
    value: float = 0.0


def test_round_trip_keeps_unicode_readable(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    note = Note(text="校准", inputs={"data": "ab"})
    note.write(path)
    assert "校准" in path.read_text(encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == "qdeploy.note/1"
    assert read_artifact(path, Note) == note
    assert [p.name for p in tmp_path.iterdir()] == ["note.json"]


def test_another_schema_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text('{"schema": "qdeploy.note/2", "text": "x"}')
    with pytest.raises(
        InputError, match=r"schema must be 'qdeploy.note/1', found 'qdeploy.note/2'"
    ):
        read_artifact(path, Note)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_json_constants_are_refused(tmp_path: Path, constant: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"value": {constant}}}')
    with pytest.raises(InputError, match=constant):
        read_json(path)


def test_nan_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="finite"):
        Note(text="x", value=float("nan"))


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failed_folder_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "out") as work:
        (work / "half").write_text("x")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "输出"
    out.mkdir()
    with new_folder(out) as work:
        (work / "a").write_text("x")
        assert list(out.iterdir()) == []
    assert (out / "a").read_text() == "x"


def test_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(InputError, match="already exists"), new_folder(tmp_path):
        pass
    assert (tmp_path / "a").read_text() == "x"


def test_digests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"")
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"1").hexdigest()
    one = sha256_files(tmp_path, ["a", "b"])
    assert one == sha256_files(tmp_path, ["b", "a"])
    (tmp_path / "a").rename(tmp_path / "c")
    assert one != sha256_files(tmp_path, ["c", "b"])
