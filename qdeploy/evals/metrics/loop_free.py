"""1 if the text has not fallen into a loop (`evals.loops`), 0 if it has.

An empty text counts 0: nothing was generated that could be free of loops, and a candidate that
answers with silence must not pass.
"""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.loops import loop_onset
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation", "short_qa", "extraction"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """0 for a loop or an empty text."""
    return float(bool(output.text.strip()) and loop_onset(output.token_ids, output.text) is None)
