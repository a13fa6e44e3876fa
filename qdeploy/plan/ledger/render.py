"""A ledger as a table for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdeploy.core.units import GIB
from qdeploy.plan.ledger.schema import Ledger, Need, Place, Stage

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_HEADINGS: dict[Place, str] = {"GPU": "a GPU", "host": "host of a node", "disk": "disk"}


def ledger_table(ledger: Ledger) -> RenderableType:
    """A row for each stage: total, low and high in each place, and whether that fits."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("stage", no_wrap=True)
    for place, heading in _HEADINGS.items():
        room = _room(ledger, place)
        table.add_column(f"{heading}: {room}", justify="right", no_wrap=True)
    for stage in ledger.stages:
        table.add_row(stage.name, *(_cell(stage.needs.get(place)) for place in _HEADINGS))
    nodes = f"{ledger.nodes} nodes of " if ledger.nodes > 1 else ""
    return Group(
        Text(f"{ledger.model} on {nodes}{ledger.gpus}x{ledger.gpu}, GiB: total (low-high)"),
        table,
        *(Text(f"{stage.name}: {_how(stage)}") for stage in ledger.stages),
        Text(f"{ledger.verdict}.", style="bold"),
        *(Text(f"note: {note}.", style="dim") for note in ledger.notes),
        *(Text(f"warning: {warning}.", style="yellow") for warning in ledger.warnings),
    )


def _room(ledger: Ledger, place: Place) -> str:
    """The most that any stage has there."""
    rooms = [stage.needs[place].capacity_bytes for stage in ledger.stages if place in stage.needs]
    known = [room for room in rooms if room is not None]
    return f"{max(known) / GIB:.1f}" if known else "not judged"


def _how(stage: Stage) -> str:
    return stage.how if stage.refusal is None else f"cannot be: {stage.refusal}"


def _cell(need: Need | None) -> Text:
    from rich.text import Text

    if need is None:
        return Text("-")
    low, total, high = (
        f"{size / GIB:.1f}" for size in (need.low_bytes, need.total_bytes, need.high_bytes)
    )
    word = {None: "", True: " fits", False: " too large"}[need.fits]
    return Text(f"{total} ({low}-{high}){word}", style="bold red" if need.fits is False else "")
