"""CSV with a header: columns named as the keys of `qdeploy.calib.rows` (text, or a pair).

Comma-separated, quoted as Excel does. An empty cell counts as absent; a row of empty cells is
skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from qdeploy.calib.data import Conversation, read_text
from qdeploy.calib.rows import PAIRS, conversation
from qdeploy.core.errors import InputError

_COLUMNS = "accepted columns: text, or " + ", ".join(f"{q} + {a}" for q, a in PAIRS)


def read(path: Path) -> list[Conversation]:
    """The rows of `path`; a row's line is that of its first line.

    Raises InputError for a header without known columns, a row with more or fewer cells than the
    header, and broken quoting.
    """
    text = read_text(path)
    # The module's limit of 128 KiB a cell is global; a long document is no error here.
    limit = csv.field_size_limit(max(len(text), csv.field_size_limit()))
    try:
        return _conversations(path, _records(path, text))
    finally:
        csv.field_size_limit(limit)


def _conversations(path: Path, records: Iterator[tuple[int, list[str]]]) -> list[Conversation]:
    _, first = next(records, (1, []))
    header = [name.strip() for name in first]
    if not header:
        return []
    if "text" not in header and not any(q in header and a in header for q, a in PAIRS):
        shown = ", ".join(repr(name[:30]) for name in header[:12])
        raise InputError(f"{path}:1: no known columns, found {shown}", hint=_COLUMNS)
    rows = []
    for line, cells in records:
        if not any(cell.strip() for cell in cells):
            continue
        source = f"{path}:{line}"
        if len(cells) != len(header):
            raise InputError(
                f"{source}: {len(cells)} cells, the header has {len(header)}",
                hint="quote a cell that holds a comma or a line break",
            )
        filled = {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}
        rows.append(conversation(filled, source))
    return rows


def _records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line where the record starts, its cells)."""
    reader = csv.reader(io.StringIO(text), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}:{line} is not valid CSV: {error}") from None
        yield line, cells
