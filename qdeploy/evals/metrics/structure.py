"""Share of checks that the text's structure passes: logic that breaks shows here.

Checked for every text: it is not empty, every code fence is closed, numbered lists count without
gaps. Checked where the prompt demands it: a list of exactly 1..N, each required point, a complete
code block, table or JSON document, a least number of characters. In the manner of the check-sets
of LongGenBench (Wu et al., 2024): by program, without a judge.
"""

from __future__ import annotations

from itertools import pairwise

from qdeploy.evals.items import Demands, Item, LongGenerationItem
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.shape_of_text import (
    fences_closed,
    has_code_block,
    has_json,
    has_point,
    has_table,
    numbering,
)
from qdeploy.evals.text import final_answer

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation"})

_COMPLETE = {"code_fence": has_code_block, "table": has_table, "json": has_json}


def score(output: Output, item: Item, context: Context) -> float | None:
    """Checks passed divided by checks made; 0 for an empty text."""
    if not isinstance(item, LongGenerationItem):
        return None
    text = final_answer(output.text)
    if not text:
        return 0.0
    passed = checks(text, item.demands)
    return sum(passed) / len(passed)


def checks(text: str, demands: Demands) -> list[bool]:
    """The result of each check of a text that is not empty, which itself is the first."""
    counted = numbering(text)
    passed = [True, fences_closed(text)]
    if demands.numbered_items is None:
        passed.append(all(now in (before + 1, 1) for before, now in pairwise([0, *counted])))
    else:
        passed.append(counted == list(range(1, demands.numbered_items + 1)))
    passed += [has_point(text, point) for point in demands.required_points]
    passed += [_COMPLETE[what](text) for what in demands.closed]
    if demands.min_chars is not None:
        passed.append(len(text) >= demands.min_chars)
    return passed
