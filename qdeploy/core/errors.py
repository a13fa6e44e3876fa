"""Errors that a user can cause. Everything else is a bug and shows a traceback.

QdeployError            exit code 2: bad input, nothing was measured or changed
├── InputError          a value, file or option is wrong
├── UnknownNameError    a name that no plugin has, with the nearest one
├── ResourceError       too little memory or disk, or something needed is not installed
└── RunError            exit code 1: the work began and its result is bad
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QdeployError(Exception):
    """One clear message: what was wrong and what was found, and a hint what to do."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(QdeployError):
    """A value, file or option is wrong."""


class UnknownNameError(InputError):
    """A name was given that is not among the choices."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        known = sorted(choices)
        near = nearest(name, known)
        hint = f"did you mean {near!r}? " if near else ""
        super().__init__(
            f"unknown {kind} {name!r}", hint=f"{hint}choices: {', '.join(known) or 'none'}"
        )
        self.name = name
        self.choices = known


class ResourceError(QdeployError):
    """Too little memory or disk, or a package that is needed is not installed."""


class RunError(QdeployError):
    """The work began and its result is bad: a failed verification, a failed run."""

    exit_code = 1


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that looks most like `name` (case ignored), or None when none is near."""
    by_folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None
