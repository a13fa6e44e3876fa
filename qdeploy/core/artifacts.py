"""Versioned, hash-bound JSON artifacts, written whole or not at all.

An artifact carries `"schema": "qdeploy.NAME/VERSION"` and `inputs`, the sha256 of all that it was
made from. Files and folders are written under a temporary name beside their place and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema, validate

A = TypeVar("A", bound="Artifact")

_CHUNK_BYTES = 1 << 20


class Artifact(Schema):
    """Base of all artifacts; a subclass sets `SCHEMA`."""

    SCHEMA: ClassVar[str]

    schema_id: str = Field(default="", alias="schema")
    inputs: dict[str, str] = Field(default_factory=dict)
    """Name of an input -> its sha256 (hex)."""

    @model_validator(mode="before")
    @classmethod
    def _check_schema(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        found = data.get("schema") or data.get("schema_id") or cls.SCHEMA
        if found != cls.SCHEMA:
            raise ValueError(f"schema must be {cls.SCHEMA!r}, found {found!r}")
        return {**{k: v for k, v in data.items() if k != "schema_id"}, "schema": cls.SCHEMA}

    def to_json(self) -> str:
        """The artifact as indented JSON with a final newline, Unicode unescaped."""
        return (
            json.dumps(self.model_dump(mode="json", by_alias=True), ensure_ascii=False, indent=2)
            + "\n"
        )

    def write(self, path: Path) -> None:
        """Write to `path` atomically."""
        write_text(path, self.to_json())


def read_artifact(path: Path, kind: type[A]) -> A:
    """The artifact of `kind` at `path`. Raises InputError when missing, malformed or another."""
    return validate(kind, read_json(path), str(path))


def read_json(path: Path) -> Any:
    """The JSON document at `path`. Raises InputError; NaN and infinity are refused."""

    def refuse(constant: str) -> Any:
        raise InputError(f"{path} holds {constant}, which is not JSON")

    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`: under a temporary name first, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well.

    Raises InputError when `path` already exists with something in it. On any error, Ctrl-C
    included, the temporary folder is removed and `path` is untouched.
    """
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        yield work
        work.chmod(0o755)
        with suppress(FileNotFoundError):
            path.rmdir()
        os.replace(work, path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def refuse_existing(path: Path) -> None:
    """Raise InputError when `path` is a file or a folder with something in it."""
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{path} already exists", hint="choose another folder or remove it first")


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_text(text: str) -> str:
    """The sha256 of `text` in UTF-8, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_files(folder: Path, names: list[str]) -> str:
    """One sha256 over the named files of `folder`: their names and contents, in sorted order."""
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\0{sha256_file(folder / name)}\n".encode())
    return digest.hexdigest()
