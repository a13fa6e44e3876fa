"""Reading a DeepSpeed configuration: strict JSON, as transformers and accelerate read it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from qdeploy.core.errors import InputError

_COMMENT = re.compile(r"^\s*(//|/\*|#)|[,{\[\d\"el]\s*(//|/\*)", re.MULTILINE)


def read_ds_config(path: Path) -> dict[str, Any]:
    """The object in the file at `path`.

    Raises InputError, with line and column, for a file that is missing, no JSON, or has a key
    twice: DeepSpeed refuses that too.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    try:
        config = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except json.JSONDecodeError as error:
        hint = None
        if _COMMENT.search(text):
            hint = (
                "take out the comments: DeepSpeed's own reader allows them, that of transformers "
                "and accelerate does not"
            )
        elif error.msg.startswith("Illegal trailing comma") or _after_comma(text, error.pos):
            hint = "take out the comma before it"
        raise InputError(
            f"{path} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}",
            hint=hint,
        ) from None
    if not isinstance(config, dict):
        raise InputError(f"{path} must hold a JSON object, found {type(config).__name__}")
    return config


def _after_comma(text: str, position: int) -> bool:
    return text[:position].rstrip().endswith(",")


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"{path} has the key {key!r} twice", hint="keep one of them")
        found[key] = value
    return found
