"""Log-probability of the right label minus that of the best other one, in nats per token.

Says how near a classification is to flipping; a continuous companion of `accuracy`.
"""

from __future__ import annotations

import math

from qdeploy.evals.items import ClassificationItem, Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "higher"
RANGE: float | None = None
KINDS = frozenset({"classification"})


def score(output: Output, item: Item, context: Context) -> float | None:
    """The margin; NaN when any label's log-probability is."""
    if not isinstance(item, ClassificationItem):
        return None
    if len(output.label_logprobs) != len(item.labels):
        raise ValueError(f"{item.id}: {len(output.label_logprobs)} scores for {len(item.labels)}")
    gold = item.labels.index(item.label)
    others = [value for at, value in enumerate(output.label_logprobs) if at != gold]
    if any(map(math.isnan, output.label_logprobs)):
        return float("nan")
    return output.label_logprobs[gold] - max(others)
