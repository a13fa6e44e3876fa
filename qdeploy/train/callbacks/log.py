"""The log of one rank: JSON lines, each on disk as soon as it is written."""

from __future__ import annotations

from qdeploy.core.errors import RunError
from qdeploy.core.schema import Schema
from qdeploy.train.callbacks.context import RunContext


class Log:
    """Appends events to the log of this rank."""

    def __init__(self, context: RunContext) -> None:
        self._path = context.log_path
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A process that was killed may have left half a line.
        self._lead = "" if self._ends_whole() else "\n"

    def write(self, event: Schema) -> None:
        """Append `event`. Raises RunError when the file cannot be written."""
        try:
            with self._path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(f"{self._lead}{event.model_dump_json()}\n")
        except OSError as error:
            raise RunError(
                f"cannot write {self._path}: {error.strerror or error}",
                hint="make room and go on with --resume; checkpoints are untouched",
            ) from error
        self._lead = ""

    def _ends_whole(self) -> bool:
        if not self._path.exists() or self._path.stat().st_size == 0:
            return True
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
