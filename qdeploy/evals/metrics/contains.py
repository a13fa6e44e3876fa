"""1 if an accepted answer occurs in the answer, unit by unit in a row, else 0."""

from __future__ import annotations

from qdeploy.evals.items import Item, ShortQaItem
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import final_answer, units

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"short_qa"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """1 when any accepted answer is there as whole units."""
    if not isinstance(item, ShortQaItem):
        return None
    said = units(final_answer(output.text))
    return float(any(_within(units(answer), said) for answer in item.answers))


def _within(part: list[str], whole: list[str]) -> bool:
    return any(
        whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1)
    )
