"""1 if the right label is the likeliest one, else 0.

Each label is scored by the mean log-probability of its tokens after the prompt, so that a label
of two tokens is not at a disadvantage. A tie that includes the right label counts as wrong.
"""

from __future__ import annotations

import math

from qdeploy.evals.items import Item
from qdeploy.evals.metrics import label_margin
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"classification"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """1 when the right label beats every other; a margin that is not a number is passed on."""
    margin = label_margin.score(output, item, context)
    if margin is None or math.isnan(margin):
        return margin
    return float(margin > 0)
