"""Share of repeated 4-grams of text units, over windows of 128 units.

The same as `seq_rep_4` on Han characters and words (`evals.text.units`) instead of model tokens,
so it does not depend on the tokenizer.
"""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import units
from qdeploy.evals.windows import repeated_share

DIRECTION: Direction = "lower"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """0 (all different) to nearly 1; None for fewer than 128 units."""
    return repeated_share(units(output.text), n=4, window=128)
