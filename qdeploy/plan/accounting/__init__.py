"""Bookkeepings, one file each: how bytes are counted.

Each file defines what `Accounting` says.
"""

from __future__ import annotations

from typing import Protocol, cast

from qdeploy.core.plugins import load_plugin
from qdeploy.core.units import GB, GIB
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.request import Basis, Unit
from qdeploy.plan.schema import PerGpu


class Accounting(Protocol):
    """A bookkeeping."""

    STRATEGIES: tuple[str, ...]
    """Strategies it plans, in the order in which they are shown."""
    NOTE: str
    """How its numbers are to be read."""
    UNIT: Unit
    """What its numbers are shown in."""

    def check(self, job: Job, layout: Layout) -> None:
        """Raise InputError for a layout that cannot be, or that it says nothing about."""

    def per_gpu(self, job: Job, layout: Layout, basis: Basis) -> PerGpu:
        """Memory of one GPU by part."""

    def need_bytes(self, parts: PerGpu) -> int:
        """What must be free for `parts` to fit."""

    def capacity_bytes(self, job: Job) -> int:
        """What the need is held against."""


def shown(size_bytes: int, unit: Unit) -> str:
    """`size_bytes` for a person in one unit, so that sizes can be compared at a glance."""
    return f"{size_bytes / (GIB if unit == 'GiB' else GB):.1f} {unit}"


def find_accounting(name: str) -> Accounting:
    """The bookkeeping called `name`. Raises UnknownNameError."""
    return cast("Accounting", load_plugin("qdeploy.plan.accounting", name, "accounting"))
