"""1 if the answer equals an accepted one after normalisation (`evals.text.normalize`), else 0.

SQuAD's exact match (Rajpurkar et al., 2016) with a normalisation that also works for Chinese.
"""

from __future__ import annotations

from qdeploy.evals.items import Item, ShortQaItem
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import final_answer, normalize

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"short_qa"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """1 for a match with any accepted answer."""
    if not isinstance(item, ShortQaItem):
        return None
    said = normalize(final_answer(output.text))
    return float(any(said == normalize(answer) for answer in item.answers))
