"""Share of characters that are U+FFFD or control characters: broken bytes in the output."""

from __future__ import annotations

import unicodedata

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "lower"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation", "short_qa", "extraction"})

REPLACEMENT = "\ufffd"


def score(output: Output, item: Item, context: Context) -> float | None:
    """0 for clean and for empty text.

    U+FFFD at the very end of an answer that the budget cut is a character cut in half: not counted.
    """
    text = output.text.rstrip(REPLACEMENT) if output.finish_reason == "length" else output.text
    if not text:
        return 0.0
    broken = sum(char == REPLACEMENT or _is_control(char) for char in text)
    return broken / len(text)


def _is_control(char: str) -> bool:
    return char not in "\n\r\t" and unicodedata.category(char) == "Cc"
