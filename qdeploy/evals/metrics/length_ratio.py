"""Tokens of the answer divided by tokens of the baseline's answer to the same prompt.

The baseline's own value is 1. Above 1: answers grow, the usual way of a damaged model; below 1:
they are cut short, which `structure` also sees.
"""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "lower"
RANGE: float | None = None
KINDS = frozenset({"long_generation", "short_qa", "extraction"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """The ratio; None when the baseline answered nothing."""
    if not context.baseline_tokens:
        return None
    return len(output.token_ids) / context.baseline_tokens
