"""Share of repeated 4-grams of model tokens, over windows of 128 tokens (`evals.windows`)."""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.windows import repeated_share

DIRECTION: Direction = "lower"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """0 (all different) to nearly 1; None for fewer than 128 tokens."""
    return repeated_share(output.token_ids, n=4, window=128)
