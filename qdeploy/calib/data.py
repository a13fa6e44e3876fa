"""Business data as conversations: one file, or every readable file of a folder.

A file's suffix names its reader (`readers/NAME.py`). Errors name file and line and show keys and
types, never content: calibration data may be personal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdeploy.core.console import say
from qdeploy.core.errors import InputError
from qdeploy.core.plugins import load_plugin, plugin_names

_READERS = "qdeploy.calib.readers"


@dataclass(frozen=True)
class Conversation:
    """One row of data: a chat, or plain text (the other one is None)."""

    messages: tuple[tuple[str, str], ...] | None
    """(role, content), role one of 'system', 'user', 'assistant'."""
    text: str | None
    source: str
    """Where it was read, 'FILE:LINE'."""


def read_data(path: Path) -> list[Conversation]:
    """All conversations of `path`, files in sorted order, rows in file order.

    Raises InputError for a missing path, a folder without readable files, a file without rows,
    and a malformed row.
    """
    return [conversation for file in data_files(path) for conversation in read_file(file)]


def data_files(path: Path) -> list[Path]:
    """The files that `read_data` reads: `path` itself, or those below it that have a reader.

    Hidden files and folders are left out; files of other suffixes are named on stderr.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(
            f"no such file or folder: {path}", hint="give a data file or a folder of data files"
        )
    found = [
        file
        for file in sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
        if file.is_file() and not _hidden(file.relative_to(path))
    ]
    readers = plugin_names(_READERS)
    readable = [file for file in found if _suffix(file) in readers]
    if not readable:
        raise InputError(
            f"{path} holds no data file ({len(found)} other files)",
            hint=f"accepted: {', '.join('*.' + name for name in readers)}",
        )
    others = [file.name for file in found if _suffix(file) not in readers]
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        say(f"{path}: not read, no reader for the suffix: {', '.join(others[:5])}{more}")
    return readable


def read_file(path: Path) -> list[Conversation]:
    """The conversations of one file, at least one. Raises InputError as `read_data` does."""
    readers = plugin_names(_READERS)
    if _suffix(path) not in readers:
        raise InputError(
            f"{path}: no reader for the suffix {path.suffix!r}",
            hint=f"accepted: {', '.join('*.' + name for name in readers)}",
        )
    rows: list[Conversation] = load_plugin(_READERS, _suffix(path), "data format").read(path)
    if not rows:
        raise InputError(f"{path} holds no rows", hint="add rows or remove the file")
    return rows


def read_text(path: Path) -> str:
    """The text of a data file: UTF-8, with or without a byte order mark; line ends become '\\n'.

    Raises InputError when the file cannot be read or is in another encoding.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 (byte {error.start})",
            hint="save it as UTF-8, for instance: iconv -f GB18030 -t UTF-8 OLD > NEW",
        ) from None


def _suffix(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)
