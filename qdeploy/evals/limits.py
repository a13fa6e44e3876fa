"""How many items of each task class are run: `40`, or `zh=8`, `long_generation=20` for some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from qdeploy.core.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Limits:
    """The most items of a task class; the most particular name counts."""

    default: int | None = None
    """None: all items."""
    by_name: dict[str, int] = field(default_factory=dict)
    """Task class ('short_qa.zh'), suite ('short_qa') or language ('zh') -> items."""

    def of(self, task_class: str) -> int | None:
        """The most items of `task_class`; None: all."""
        suite, _, lang = task_class.rpartition(".")
        for name in (task_class, suite, lang):
            if name in self.by_name:
                return self.by_name[name]
        return self.default

    def check_names(self, task_classes: Iterable[str]) -> None:
        """Raise UnknownNameError for a name that is no task class, suite or language here."""
        known = set(task_classes)
        known |= {part for name in known for part in (name.rpartition(".")[0], name.split(".")[-1])}
        for name in self.by_name:
            if name not in known:
                raise UnknownNameError("task class, suite or language", name, known)

    def words(self) -> list[str]:
        """The limits as `parse_limits` reads them."""
        general = [] if self.default is None else [str(self.default)]
        return general + [f"{name}={items}" for name, items in self.by_name.items()]


def parse_limits(words: Sequence[str]) -> Limits:
    """Limits from 'N' and 'NAME=N'. Raises InputError for anything else."""
    default: int | None = None
    by_name: dict[str, int] = {}
    for word in words:
        name, _, number = word.rpartition("=")
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise InputError(
                f"limit {word!r} is no number of items",
                hint="give N, or NAME=N for a task class, suite or language: --limit zh=8",
            )
        if name:
            by_name[name] = int(number)
        else:
            default = int(number)
    return Limits(default, by_name)
