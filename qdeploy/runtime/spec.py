"""What a user names in `--compare`: a precision of MODEL, a project's candidate, NAME=FOLDER."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.models.source import model_folder

PRECISIONS = ("bf16", "fp16", "fp32")

_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class CandidateSpec:
    """A candidate that is not loaded yet."""

    name: str
    folder: Path
    precision: str | None
    """One of PRECISIONS, to which a plain folder's weights are rounded; None: as stored."""


def parse_candidate(text: str, model: Path | None, candidates: Mapping[str, Path]) -> CandidateSpec:
    """The candidate that `text` names.

    `model`: the folder that 'bf16', 'fp16' and 'fp32' mean; `candidates`: name -> folder of the
    project's own candidates, which go first. Raises UnknownNameError with the choices, InputError
    for a missing folder or model, or a name that cannot be a file's name.
    """
    if "=" in text:
        name, folder = text.split("=", 1)
        return CandidateSpec(_checked(name, text), _folder(folder, text), None)
    precision = text if text in PRECISIONS else None
    if text in candidates:
        return CandidateSpec(_checked(text, text), _folder(str(candidates[text]), text), precision)
    if precision is not None:
        if model is None:
            raise InputError(
                f"candidate {text!r} is a precision of the model, and no model was given",
                hint="give MODEL, or `model:` in qdeploy.yaml",
            )
        return CandidateSpec(text, _folder(str(model), text), precision)
    if Path(text).expanduser().is_dir():
        raise InputError(
            f"candidate {text!r} is a folder without a name", hint=f"write NAME={text}"
        )
    raise UnknownNameError("candidate", text, [*PRECISIONS, *candidates, "NAME=FOLDER"])


def _checked(name: str, text: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"candidate {text!r}: {name!r} is no name",
            hint="use letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return name


def _folder(folder: str, text: str) -> Path:
    if not folder:
        raise InputError(f"candidate {text!r} names no folder", hint="write NAME=FOLDER")
    return model_folder(folder)
