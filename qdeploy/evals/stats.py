"""Intervals that stay honest with few items, few differences and items that share a source.

Paired differences (candidate - baseline) of a score of limited range are split into gains and
losses. Each side's mean gets an exact binomial (Clopper-Pearson) limit on an effective number of
items, and the two are joined by the method of variance estimates recovery (Newcombe, Statistics in
Medicine 17:2635, 1998, method 10, with exact limits in place of score limits). So
- no difference in n items gives the limits of 0 of n, 1 - alpha**(1/n), never a width of zero;
- with many differences it nears the usual t interval.
Scores that are not 0 or 1 are treated as events of their own typical size (second moment over
first, one full-size event added), so small changes everywhere are not taken for rare large ones.

Items that share a source are correlated: the number of items is divided by the design effect, the
ratio of the cluster-robust to the plain variance, but never below that of an intra-cluster
correlation of LEAST_CORRELATION, and is corrected for the few clusters it was estimated from (Korn
and Graubard, Survey Methodology 24:193, 1998). Scores without a limit get the cluster-robust t
interval with clusters - 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from qdeploy.core.errors import InputError

CONFIDENCE = 0.90
"""Two-sided; each end is one-sided at 0.95."""

LEAST_CORRELATION = 0.05
"""Intra-cluster correlation assumed where the items show less, since few differences show
nothing about it."""

_MOST_ITEMS = 1_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Sample:
    """Values with what their clusters say about how many independent items they are worth."""

    values: Floats
    clusters: int
    effective: float
    """Number of independent items with the same information."""


def paired_interval(
    differences: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
    bound: float | None = 1.0,
) -> tuple[float, float, float]:
    """(mean, low, high) of the paired differences.

    `bound` is the score's range, so that every difference lies in -bound..bound; None for a score
    without a limit. With one item or one cluster the limits are the whole range (infinite without
    a bound). Raises InputError for no differences, NaN, or a difference outside the range.
    """
    values = _checked(differences, clusters, confidence)
    mean = float(values.mean())
    sample = _sample(values, clusters)
    if sample.clusters < 2:
        reach = math.inf if bound is None else float(bound)
        return mean, -reach, reach
    if bound is None:
        half = _cluster_t(values, clusters, confidence)
        return mean, mean - half, mean + half
    if np.abs(values).max() > bound * (1 + 1e-9):
        raise InputError(f"a difference of {np.abs(values).max():g} exceeds the range {bound:g}")
    low, high = _recovered(values / bound, sample.effective, (1 - confidence) / 2)
    return mean, max(low, -1.0) * bound, min(high, 1.0) * bound


def mean_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[float, float, float]:
    """(mean, low, high) of scores in 0..1, with the same care as `paired_interval`."""
    scores = _checked(values, clusters, confidence)
    if scores.min() < 0 or scores.max() > 1:
        raise InputError(f"scores must lie in 0..1, found {scores.min():g}..{scores.max():g}")
    sample = _sample(scores, clusters)
    if sample.clusters < 2:
        return float(scores.mean()), 0.0, 1.0
    alpha = (1 - confidence) / 2
    low, _ = _limits(scores, sample.effective, alpha)
    missing, _ = _limits(1 - scores, sample.effective, alpha)
    return float(scores.mean()), low, 1 - missing


def items_needed(
    items: int, difference: float, low: float, margin: float, any_change: bool = True
) -> int | None:
    """About how many items in all would bring the lower limit above -margin.

    From what was seen on `items` of them: the mean `difference` (below 0 is worse) and its limit
    `low`. The distance of the limit shrinks with the root of the number of items, or with the
    number itself as long as nothing changed at all. None where more items would not help, because
    the difference itself is at the margin or beyond.
    """
    room = difference + margin
    if room <= 0 or not math.isfinite(low):
        return None
    power = 2 if any_change else 1
    needed = items * ((difference - low) / room) ** power
    return max(items, math.ceil(needed)) if needed < _MOST_ITEMS else None


def mcnemar_exact(worse: int, better: int) -> float:
    """Two-sided exact p-value that flips go both ways alike (McNemar 1947); 1 for none."""
    if worse + better == 0:
        return 1.0
    return float(distributions.binomtest(worse, worse + better, 0.5).pvalue)


def _checked(
    values: Sequence[float], clusters: Sequence[Hashable] | None, confidence: float
) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InputError("no items: an interval needs at least one")
    if not np.isfinite(array).all():
        raise InputError(
            f"{int((~np.isfinite(array)).sum())} of {array.size} values are not finite"
        )
    if clusters is not None and len(clusters) != array.size:
        raise InputError(f"{array.size} values but {len(clusters)} clusters")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, found {confidence}")
    return array


def _codes(clusters: Sequence[Hashable] | None, size: int) -> NDArray[np.int64]:
    if clusters is None:
        return np.arange(size, dtype=np.int64)
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in clusters], dtype=np.int64)


def _robust_variance(values: Floats, codes: NDArray[np.int64]) -> float:
    """Cluster-robust variance of the mean: G/(G-1) sum_g (sum_i (x_i - mean))^2 / n^2."""
    sums = np.bincount(codes, weights=values - values.mean())
    return float(len(sums) / (len(sums) - 1) * (sums**2).sum() / len(values) ** 2)


def _sample(values: Floats, clusters: Sequence[Hashable] | None) -> _Sample:
    n = len(values)
    codes = _codes(clusters, n)
    sizes = np.bincount(codes)
    groups = len(sizes)
    if groups < 2 or groups == n:
        return _Sample(values, groups, float(n))
    typical = float((sizes**2).sum() / n)
    effect = 1 + (typical - 1) * LEAST_CORRELATION
    plain = float(values.var(ddof=1) / n)
    if plain > 0:
        effect = max(effect, _robust_variance(values, codes) / plain)
    few = (_t(0.95, n - 1) / _t(0.95, groups - 1)) ** 2
    return _Sample(values, groups, n / effect * few)


def _t(quantile: float, freedom: int) -> float:
    return float(distributions.t.ppf(quantile, freedom))


def _cluster_t(values: Floats, clusters: Sequence[Hashable] | None, confidence: float) -> float:
    """Half the width of the cluster-robust t interval."""
    codes = _codes(clusters, len(values))
    freedom = int(codes.max())
    return _t(1 - (1 - confidence) / 2, freedom) * math.sqrt(_robust_variance(values, codes))


def _recovered(values: Floats, effective: float, alpha: float) -> tuple[float, float]:
    """Limits of mean(gains) - mean(losses) from the limits of either, for values in -1..1."""
    gains, losses = np.maximum(values, 0), np.maximum(-values, 0)
    gain, loss = float(gains.mean()), float(losses.mean())
    gain_low, gain_high = _limits(gains, effective, alpha)
    loss_low, loss_high = _limits(losses, effective, alpha)
    spread = float(gains.std() * losses.std())
    # A value is a gain or a loss, never both: E[gain x loss] = 0, so they covary negatively.
    correlation = -gain * loss / spread if spread > 0 else 0.0

    def reach(ours: float, theirs: float) -> float:
        return math.sqrt(ours**2 + theirs**2 - 2 * correlation * ours * theirs)

    mean = gain - loss
    return (
        mean - reach(gain - gain_low, loss_high - loss),
        mean + reach(gain_high - gain, loss - loss_low),
    )


def _limits(values: Floats, effective: float, alpha: float) -> tuple[float, float]:
    """One-sided limits at alpha of the mean of values in 0..1, as of rare events of one size."""
    total = float(values.sum())
    size = (float((values**2).sum()) + 1) / (total + 1)
    rate = min(float(values.mean()) / size, 1.0)
    events = rate * effective
    low = 0.0
    if events > 0:
        low = float(distributions.beta.ppf(alpha, events, effective - events + 1))
    high = 1.0
    if events < effective:
        high = float(distributions.beta.ppf(1 - alpha, events + 1, effective - events))
    mean = float(values.mean())
    return min(size * low, mean), max(size * high, mean)
