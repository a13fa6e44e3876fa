"""1 if the model ended its answer by itself, 0 if the token budget cut it."""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation", "short_qa", "extraction"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """0 when the answer was cut."""
    return float(output.finish_reason != "length")
