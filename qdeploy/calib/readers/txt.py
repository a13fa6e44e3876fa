"""Plain text: passages separated by blank lines."""

from __future__ import annotations

from pathlib import Path

from qdeploy.calib.data import Conversation, read_text
from qdeploy.calib.rows import conversation


def read(path: Path) -> list[Conversation]:
    """The passages of `path`; a passage's line is that of its first line."""
    rows = []
    passage: list[str] = []
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        if line.strip():
            passage.append(line)
        elif passage:
            source = f"{path}:{number - len(passage)}"
            rows.append(conversation({"text": "\n".join(passage)}, source))
            passage = []
    return rows
