"""Samples on disk, one file per candidate and suite, each line written as soon as it is done.

A killed run keeps what it had. Beside `SUITE.jsonl` lies `SUITE.key.json` with all that the samples
depend on; only a run with the very same key goes on where the other stopped, so answers of other
weights, prompts or code are never served.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pydantic import Field

from qdeploy.core.artifacts import read_json, write_text
from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema, validate
from qdeploy.evals.results import Sample


class _KeyFile(Schema):
    key: dict[str, str]
    seconds: float = Field(default=0.0, ge=0)
    """Time spent on the samples, over all runs."""


class SampleFile:
    """The samples of one candidate and suite; a context manager."""

    def __init__(self, path: Path, key: dict[str, str], *, overwrite: bool = False) -> None:
        """Open `path` to go on with it. Raises InputError when it was made with another key,
        unless `overwrite` is set, which starts over."""
        self.path = path
        self.key = key
        self.seconds = 0.0
        self.done: dict[str, Sample] = {}
        self._file: TextIO | None = None
        key_path = key_path_of(path)
        if path.exists() or key_path.exists():
            self._take_up(key_path, overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The key goes first: samples without a key would belong to nobody.
        self._write_key()
        write_text(path, "".join(_line(sample) for sample in self.done.values()))

    def _take_up(self, key_path: Path, overwrite: bool) -> None:
        found = (
            validate(_KeyFile, read_json(key_path), str(key_path)) if key_path.exists() else None
        )
        if found is not None and found.key == self.key:
            self.done = read_samples(self.path) if self.path.exists() else {}
            self.seconds = found.seconds
        elif not overwrite:
            what = "without a key" if found is None else _differences(found.key, self.key)
            raise InputError(
                f"{self.path} holds samples of another run ({what})",
                hint="choose another output folder, or overwrite these results",
            )

    def __enter__(self) -> None:
        self._file = self.path.open("a", encoding="utf-8", newline="\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        self._write_key()

    def add(self, sample: Sample) -> None:
        """Write a sample now."""
        assert self._file is not None, "used outside its with block"
        self._file.write(_line(sample))
        self._file.flush()
        self.done[sample.id] = sample

    def _write_key(self) -> None:
        state = _KeyFile(key=self.key, seconds=self.seconds).model_dump(mode="json")
        write_text(key_path_of(self.path), json.dumps(state, ensure_ascii=False, indent=2) + "\n")


def key_path_of(path: Path) -> Path:
    """`SUITE.key.json` of `SUITE.jsonl`."""
    return path.with_suffix(".key.json")


def read_samples(path: Path) -> dict[str, Sample]:
    """Item id -> sample. A last line that was cut while being written is left out.

    Raises InputError for any other line that is not a sample, and for an id that is there twice.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    samples: dict[str, Sample] = {}
    for number, line in enumerate(lines[:-1], start=1):
        try:
            raw = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not valid JSON: {error.msg}") from None
        sample = validate(Sample, raw, f"{path}:{number}")
        if sample.id in samples:
            raise InputError(f"{path}:{number}: sample {sample.id!r} is there twice")
        samples[sample.id] = sample
    return samples


def _line(sample: Sample) -> str:
    return json.dumps(sample.model_dump(mode="json"), ensure_ascii=False) + "\n"


def _differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    names: Iterable[str] = sorted(
        name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    )
    return f"different {', '.join(names)}"
