"""From an output to its scores: what a metric is given, and how metrics are looked up.

A metric is a file `metrics/NAME.py` with
- `DIRECTION`: 'higher' or 'lower' is better;
- `RANGE`: the largest minus the smallest possible score, or None where there is no limit;
- `KINDS`: the kinds of suites it applies to;
- `score(output, item, context) -> float | None`: None where the metric does not apply to the item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from qdeploy.core.plugins import load_plugin, plugin_names
from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction

METRICS_PACKAGE = "qdeploy.evals.metrics"


@dataclass(frozen=True)
class Output:
    """What a candidate answered to one item."""

    text: str
    token_ids: list[int] = field(default_factory=list)
    """The generated tokens, without the token that ends the answer."""
    finish_reason: Literal["stop", "length", "scored"] = "stop"
    label_logprobs: list[float] = field(default_factory=list)
    """Of a classification: per label, the mean log-probability (nats) of its tokens."""


@dataclass(frozen=True)
class Context:
    """What a metric may know besides output and item."""

    lang: str
    baseline_tokens: int | None = None
    """Tokens of the baseline's answer to the same item; for the baseline itself, of its own."""


class Metric(Protocol):
    """A module in `metrics/`."""

    DIRECTION: Direction
    RANGE: float | None
    KINDS: frozenset[str]

    def score(self, output: Output, item: Item, context: Context) -> float | None:
        """The score of one output, or None where the metric does not apply."""


def metric(name: str) -> Metric:
    """The metric of that name. Raises UnknownNameError with the nearest name."""
    return cast("Metric", load_plugin(METRICS_PACKAGE, name, "metric"))


def metric_names() -> list[str]:
    """The names of all metrics."""
    return plugin_names(METRICS_PACKAGE)


def score_all(
    names: list[str], output: Output, item: Item, context: Context
) -> tuple[dict[str, float], list[str]]:
    """(scores by metric, names of metrics whose score was NaN or infinite)."""
    scores: dict[str, float] = {}
    broken: list[str] = []
    for name in names:
        value = metric(name).score(output, item, context)
        if value is None:
            continue
        if math.isfinite(value):
            scores[name] = float(value)
        else:
            broken.append(name)
    return scores, broken
