"""What a person sees while work goes on: everything here goes to stderr.

Stdout is kept for results (tables, or one JSON document with `--json`). On a terminal progress is
a bar; elsewhere a plain line now and then, so that CI logs stay readable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from qdeploy.core.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 10.0
_LEAST_WIDTH = 120


@cache
def stderr() -> Console:
    """Where everything goes that is no result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def results() -> Console:
    """Stdout for tables; wide enough for them where it is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, width=max(console.width, _LEAST_WIDTH))


def say(text: str) -> None:
    """One line for the person who waits."""
    stderr().print(text, markup=False)


def warn(text: str) -> None:
    """One line that should be read."""
    stderr().print(f"warning: {text}", style="yellow", markup=False)


def explain(message: str, hint: str | None) -> None:
    """An error, and what to do."""
    from rich.text import Text

    stderr().print(Text.assemble(("error:", "bold red"), f" {message}"))
    if hint:
        stderr().print(Text.assemble(("hint:", "bold"), f" {hint}"))


class Bar:
    """Progress of one piece of work; call `advance` as it goes on."""

    def __init__(
        self, label: str, total: int, progress: Progress | None, task: TaskID | None
    ) -> None:
        self._label = label
        self._total = total
        self._progress = progress
        self._task = task
        self._done = 0
        self._start = self._said = time.monotonic()

    def advance(self, steps: int = 1, note: str = "") -> None:
        """`steps` more of the total are done; `note` is shown beside the bar."""
        self._done += steps
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=steps, note=note)
            return
        now = time.monotonic()
        if now - self._said >= _LINE_SECONDS and self._done < self._total:
            self._said = now
            left = (now - self._start) / self._done * (self._total - self._done)
            tail = f" {note}" if note else ""
            say(f"{self._label}: {self._done}/{self._total}, {format_seconds(left)} left{tail}")


@contextmanager
def progress(label: str, total: int) -> Iterator[Bar]:
    """A progress bar on a terminal, a line every ten seconds elsewhere."""
    start = time.monotonic()
    if stderr().is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=stderr(), transient=True) as bars:
            yield Bar(label, total, bars, bars.add_task(label, total=total, note=""))
    else:
        yield Bar(label, total, None, None)
    say(f"{label}: done in {format_seconds(time.monotonic() - start)}")
