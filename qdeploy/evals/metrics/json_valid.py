"""1 if the answer holds a complete JSON object, else 0."""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.json_answer import find_object
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import final_answer

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"extraction"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """1 when an object can be read."""
    return float(find_object(final_answer(output.text)) is not None)
