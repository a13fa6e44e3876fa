"""How often an interval passes a candidate that is worse by the margin, and one that is as good.

    python benchmarks/gate_power.py [REPETITIONS]

Simulated pairs of binary scores with a set share of items that change; the numbers in
docs/evaluation.md come from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from qdeploy.evals.stats import paired_interval

ITEMS_OF_A_CLUSTER = 4


def _pairs(
    rng: np.random.Generator, items: int, worse: float, better: float, correlation: float
) -> tuple[list[float], list[int]]:
    """Differences (-1, 0, 1) with these chances; in a cluster they agree by `correlation`."""
    clusters = [at // ITEMS_OF_A_CLUSTER for at in range(items)]
    values = rng.choice([-1.0, 0.0, 1.0], size=items, p=[worse, 1 - worse - better, better])
    shared = rng.choice([-1.0, 0.0, 1.0], size=items, p=[worse, 1 - worse - better, better])
    follows = rng.random(items) < np.sqrt(correlation)
    values = np.where(follows, shared[np.array(clusters)], values)
    return values.tolist(), clusters


def _passes(
    rng: np.random.Generator, repetitions: int, margin: float, **setting: float
) -> Iterator[bool]:
    items = int(setting.pop("items"))
    for _ in range(repetitions):
        differences, clusters = _pairs(rng, items, **setting)
        independent = setting["correlation"] == 0
        _, low, _ = paired_interval(differences, None if independent else clusters)
        yield low > -margin


def main() -> None:
    """Print false passes at the margin, then power."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rng = np.random.default_rng(0)
    print(f"{repetitions} repetitions, clusters of {ITEMS_OF_A_CLUSTER}")
    for correlation in (0.0, 0.1, 0.3):
        found = {}
        for items in (40, 72, 144, 200):
            for margin in (0.02, 0.05, 0.1):
                for extra in (0.0, 0.05, 0.1):
                    share = _passes(
                        rng, repetitions, margin,
                        items=items, worse=margin + extra, better=extra, correlation=correlation,
                    )  # fmt: skip
                    found[items, margin, extra] = np.mean(list(share))
        worst = max(found, key=found.__getitem__)
        print(f"correlation {correlation}: at most {found[worst]:.1%} false passes, at {worst}")
    for items in (72, 144):
        for margin in (0.05, 0.1):
            shares = []
            for change in (0.0, 0.02, 0.05, 0.1):
                setting = {"items": items, "worse": change / 2, "better": change / 2}
                passes = _passes(rng, repetitions, margin, **setting, correlation=0.0)
                shares.append(f"{np.mean(list(passes)):.0%} at {change:.0%} changed")
            print(f"power, {items} items, margin {margin}: {', '.join(shares)}")


if __name__ == "__main__":
    main()
