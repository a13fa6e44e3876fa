"""1 if the answer is written in the prompt's script, else 0: catches switches of language.

The share of letters in the script of the prompt's language must reach one half for alphabetic
scripts and 0.3 for Chinese, Japanese and Korean, where one character is worth several Latin
letters and code or JSON keys are Latin.
"""

from __future__ import annotations

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output
from qdeploy.evals.text import script_of, script_share

DIRECTION: Direction = "higher"
RANGE: float | None = 1.0
KINDS = frozenset({"long_generation"})

_LEAST_SHARE = {"han": 0.3, "japanese": 0.3, "hangul": 0.3}


def score(output: Output, item: Item, context: Context) -> float | None:
    """0 for another script or no letters at all; None for a language without a known script."""
    script = script_of(context.lang)
    if script is None:
        return None
    return float(script_share(output.text, script) >= _LEAST_SHARE.get(script, 0.5))
