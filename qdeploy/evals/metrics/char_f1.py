"""F1 of the answer's units against an accepted answer's, as multisets; the best over the answers.

SQuAD's F1 (Rajpurkar et al., 2016) on the units of `evals.text.units`: Han characters one by one,
other words whole. Multisets, so an answer that repeats a right word does not gain.
"""

from __future__ import annotations

from collections import Counter

from qdeploy.evals.items import Item, ShortQaItem
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import final_answer, units

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"short_qa"})


def f1(said: str, wanted: str) -> float:
    """F1 of two texts' units; 1 when both have none."""
    ours, theirs = Counter(units(said)), Counter(units(wanted))
    if not ours and not theirs:
        return 1.0
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total())


def score(output: Output, item: Item, context: Context) -> float | None:
    """The best F1 over the accepted answers."""
    if not isinstance(item, ShortQaItem):
        return None
    said = final_answer(output.text)
    return max(f1(said, answer) for answer in item.answers)
