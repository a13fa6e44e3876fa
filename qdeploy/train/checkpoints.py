"""Checkpoints that are complete or absent.

All ranks write into a staging folder. When all are done, the first one lists what was written in a
marker file and renames the folder, so a run that is killed at any moment leaves whole checkpoints
only. The marker also says what the run was: nothing else may go on from it.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from qdeploy.core.artifacts import Artifact, read_artifact
from qdeploy.core.errors import InputError

STAGING = ".saving"
"""Folder in that of the checkpoints that one is written in."""

_MARKER = "qdeploy_checkpoint.json"
_PREFIX = "checkpoint-"


class Checkpoint(Artifact):
    """The marker of a complete checkpoint; `inputs` are the fingerprints of the run."""

    SCHEMA: ClassVar[str] = "qdeploy.checkpoint/1"

    step: int
    """Optimizer steps that are done."""
    files: dict[str, int]
    """Every file of the folder, with its size in bytes."""


def staging_step(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is written before it is complete."""
    return folder / STAGING / f"{_PREFIX}{step}"


def complete(folder: Path, step: int, fingerprint: dict[str, str], keep: int) -> Path:
    """Make what was staged for `step` a checkpoint, and remove all but the newest `keep`."""
    staged = staging_step(folder, step)
    final = folder / staged.name
    files = {
        path.relative_to(staged).as_posix(): path.stat().st_size
        for path in sorted(staged.rglob("*"))
        if path.is_file()
    }
    Checkpoint(step=step, files=files, inputs=fingerprint).write(staged / _MARKER)
    if final.exists():
        shutil.rmtree(final)
    os.replace(staged, final)
    discard_staging(folder)
    for _, old in _found(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def discard_staging(folder: Path) -> None:
    """Remove what an interrupted save left."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / STAGING)


def latest(folder: Path) -> tuple[Path, Checkpoint] | None:
    """The newest complete checkpoint of `folder`; None where there is none."""
    for _, path in reversed(_found(folder)):
        marker = path / _MARKER
        if not marker.is_file():
            continue
        checkpoint = read_artifact(marker, Checkpoint)
        if all(_size(path / name) == size for name, size in checkpoint.files.items()):
            return path, checkpoint
    return None


def check_same_run(path: Path, checkpoint: Checkpoint, fingerprint: dict[str, str]) -> None:
    """Raise InputError when the checkpoint at `path` is of another run."""
    other = [name for name, value in fingerprint.items() if checkpoint.inputs.get(name) != value]
    if other:
        raise InputError(
            f"{path} was made with another {' and '.join(other)}, so its losses would not go on",
            hint="give what it was made with, or another `out` to start from the beginning",
        )


def _found(folder: Path) -> list[tuple[int, Path]]:
    return sorted(
        (int(path.name.removeprefix(_PREFIX)), path)
        for path in folder.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdecimal()
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
