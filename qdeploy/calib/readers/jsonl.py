"""JSON lines: one JSON object a line, in any form of `qdeploy.calib.rows`; blank lines skipped."""

from __future__ import annotations

import json
from pathlib import Path

from qdeploy.calib.data import Conversation, read_text
from qdeploy.calib.rows import ACCEPTED, conversation
from qdeploy.core.errors import InputError


def read(path: Path) -> list[Conversation]:
    """The rows of `path`. Raises InputError that names the line of a malformed row."""
    rows = []
    # Not splitlines(): U+2028 and other Unicode line ends are legal inside JSON strings.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        source = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            problem = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise InputError(
                f"{source} is not one JSON object a line: {problem}", hint=f"accepted: {ACCEPTED}"
            ) from None
        rows.append(conversation(row, source))
    return rows
