import math

import numpy as np
import pytest
from scipy import stats as distributions

from qdeploy.core.errors import InputError
from qdeploy.evals import stats
from qdeploy.evals.stats import items_needed, mcnemar_exact, mean_interval, paired_interval

RUNS = 400
MOST_FALSE_PASSES = 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)


@pytest.mark.parametrize("n", [2, 10, 40, 144])
def test_no_difference_seen_is_0_of_n(n: int) -> None:
    mean, low, high = paired_interval([0.0] * n)
    assert mean == 0
    assert low == pytest.approx(-(1 - 0.05 ** (1 / n)))
    assert high == -low


def test_no_difference_seen_in_percent_scales() -> None:
    assert paired_interval([0.0] * 10, bound=100)[1] == pytest.approx(-100 * (1 - 0.05**0.1))


def test_only_losses_give_the_exact_binomial_limit() -> None:
    values = [-1.0] * 3 + [0.0] * 37
    wanted = distributions.beta.ppf(0.95, 4, 37)
    assert paired_interval(values)[1] == pytest.approx(-wanted)


@pytest.mark.parametrize("bound", [1.0, 2.0])
def test_one_item_or_one_cluster_says_nothing(bound: float) -> None:
    assert paired_interval([0.25], bound=bound) == (0.25, -bound, bound)
    assert paired_interval([0.0] * 9, ["a"] * 9, bound=bound) == (0.0, -bound, bound)
    assert paired_interval([0.25], bound=None) == (0.25, -math.inf, math.inf)


def test_gains_and_losses_mirror_each_other() -> None:
    values = [-1.0, -0.5, 0.0, 0.25] * 9
    clusters = [i // 3 for i in range(36)]
    mean, low, high = paired_interval(values, clusters)
    assert paired_interval([-v for v in values], clusters) == pytest.approx((-mean, -high, -low))


def test_without_a_bound_it_is_the_t_interval() -> None:
    values = [0.5, -1.25, 3.0, 0.0, 2.0]
    half = distributions.t.ppf(0.95, 4) * np.std(values, ddof=1) / math.sqrt(5)
    assert paired_interval(values, bound=None) == pytest.approx((0.85, 0.85 - half, 0.85 + half))


def test_clusters_without_a_bound_by_the_definition() -> None:
    values, clusters = [1.0, 2.0, 0.0, -1.0, 4.0, 1.0], ["a", "a", "b", "b", "b", "c"]
    mean = sum(values) / 6
    squares = 0.0
    for name in "abc":
        total = 0.0
        for value, cluster in zip(values, clusters, strict=True):
            total += (value - mean) * (cluster == name)
        squares += total**2
    half = distributions.t.ppf(0.95, 2) * math.sqrt(3 / 2 * squares / 36)
    assert paired_interval(values, clusters, bound=None)[2] - mean == pytest.approx(half)


def test_copies_of_an_item_add_nothing() -> None:
    single = [-1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, -1.0, 0.0] * 2
    copied = [value for value in single for _ in range(10)]
    clusters = [i // 10 for i in range(200)]
    _, low, high = paired_interval(copied, clusters)
    _, low_single, high_single = paired_interval(single)
    assert low <= low_single * 0.95
    assert high >= high_single * 0.95


def test_many_differences_near_the_t_interval() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(-0.3, 0.3, 400)
    mean, low, _ = paired_interval(list(values))
    half = distributions.t.ppf(0.95, 399) * values.std(ddof=1) / 20
    assert half < mean - low < 1.25 * half


@pytest.mark.parametrize("bad", [[], [math.nan, 0.0], [math.inf], [1.5, 0.0]])
def test_bad_values(bad: list[float]) -> None:
    with pytest.raises(InputError):
        paired_interval(bad)


def test_bad_clusters_and_confidence() -> None:
    with pytest.raises(InputError, match="2 values but 1 clusters"):
        paired_interval([0.0, 0.0], ["a"])
    with pytest.raises(InputError, match="confidence"):
        paired_interval([0.0, 0.0], confidence=95)


def test_mean_interval() -> None:
    mean, low, high = mean_interval([1.0] * 8 + [0.0] * 2)
    assert mean == 0.8
    assert low == pytest.approx(distributions.beta.ppf(0.05, 8, 3))
    assert high == pytest.approx(distributions.beta.ppf(0.95, 9, 2))
    assert mean_interval([1.0]) == (1.0, 0.0, 1.0)
    assert mean_interval([1.0] * 20)[1] == pytest.approx(0.05 ** (1 / 20))
    with pytest.raises(InputError):
        mean_interval([1.2, 0.0])


def test_items_needed() -> None:
    assert items_needed(100, 0.0, -0.04, 0.02) == 400
    assert items_needed(100, 0.0, -0.04, 0.02, any_change=False) == 200
    assert items_needed(100, -0.03, -0.04, 0.02) is None
    assert items_needed(100, -0.02, -0.04, 0.02) is None
    assert items_needed(100, 0.0, -0.01, 0.02) == 100
    assert items_needed(1, 0.0, -math.inf, 0.02) is None


def test_items_needed_agrees_with_the_interval() -> None:
    values = [-1.0] * 3 + [1.0] * 3 + [0.0] * 54
    needed = items_needed(60, 0.0, paired_interval(values)[1], 0.03)
    assert needed is not None
    times = needed / 60
    low = paired_interval(values * round(times))[1]
    assert -0.033 < low < -0.024


def test_mcnemar() -> None:
    assert mcnemar_exact(0, 0) == 1
    assert mcnemar_exact(5, 0) == pytest.approx(2 * 0.5**5)
    assert mcnemar_exact(3, 3) == 1


def false_passes(n: int, size: int, correlation: float, margin: float, gain: float) -> float:
    """Share of draws that pass although the true mean difference is exactly -margin.

    Clusters draw their own chances from a Dirichlet distribution, so that two items of a cluster
    correlate by `correlation`.
    """
    rng = np.random.default_rng(n * 100 + size)
    loss = gain + margin
    clusters = np.arange(n) // size
    chances = np.array([loss, gain, 1 - loss - gain])
    passed = 0
    for _ in range(RUNS):
        p = np.tile(chances, (n, 1))
        if correlation:
            strength = (1 - correlation) / correlation
            alpha = np.maximum(chances * strength, 1e-9)
            p = rng.dirichlet(alpha, size=clusters[-1] + 1)[clusters]
        draw = rng.random(n)
        values = np.where(draw < p[:, 0], -1.0, np.where(draw < p[:, 0] + p[:, 1], 1.0, 0.0))
        _, low, _ = paired_interval(list(values), list(clusters) if size > 1 else None)
        passed += low > -margin
    return passed / RUNS


@pytest.mark.parametrize("gain", [0.0, 0.01, 0.1])
@pytest.mark.parametrize(("n", "margin"), [(40, 0.05), (40, 0.1), (100, 0.03), (200, 0.02)])
def test_false_passes_of_independent_items(n: int, margin: float, gain: float) -> None:
    assert false_passes(n, 1, 0.0, margin, gain) <= MOST_FALSE_PASSES


@pytest.mark.parametrize("gain", [0.0, 0.05])
@pytest.mark.parametrize(("n", "size"), [(72, 2), (80, 5), (72, 7)])
def test_false_passes_of_clustered_items(n: int, size: int, gain: float) -> None:
    assert false_passes(n, size, 0.1, 0.08, gain) <= MOST_FALSE_PASSES


def test_a_plain_t_interval_would_not_do() -> None:
    """Why the exact limits are there: with few differences a t interval passes far too often."""
    rng = np.random.default_rng(3)
    passed = 0
    for _ in range(RUNS):
        values = np.where(rng.random(40) < 0.05, -1.0, 0.0)
        half = distributions.t.ppf(0.95, 39) * values.std(ddof=1) / math.sqrt(40)
        passed += values.mean() - half > -0.05
    assert passed / RUNS > 2 * 0.05


def test_the_assumed_correlation_is_small_but_there() -> None:
    clusters = [i // 10 for i in range(100)]
    low = paired_interval([0.0] * 100, clusters)[1]
    assert low < paired_interval([0.0] * 100)[1]
    assert 0 < stats.LEAST_CORRELATION <= 0.1
