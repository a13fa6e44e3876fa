"""F1 of the extracted fields: a field is right when name and normalised value are.

With the asked fields and no others in the answer this is the share of right fields; a field that
nobody asked for lowers it. No JSON object in the answer gives 0.
"""

from __future__ import annotations

from qdeploy.evals.items import ExtractionItem, Item
from qdeploy.evals.json_answer import find_object
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import final_answer, normalize

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"extraction"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """2 x right / (answered + asked)."""
    if not isinstance(item, ExtractionItem):
        return None
    found = find_object(final_answer(output.text))
    if found is None:
        return 0.0
    right = sum(
        name in found and normalize(_text(found[name])) == normalize(value)
        for name, value in item.fields.items()
    )
    return 2 * right / (len(found) + len(item.fields))


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)
