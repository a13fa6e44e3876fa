"""Exact and near duplicates among texts.

Near means a Jaccard similarity of the sets of 5-grams of at least `NEAR`. The join is exact, not
sketched: with each set's shingles in one global order, rarest first, two sets that are similar
enough share a shingle among the first |x| - ceil(NEAR |x|) + 1 of each (prefix filtering,
Chaudhuri et al. 2006, "A Primitive Operator for Similarity Joins in Data Cleaning").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

NEAR = Fraction(4, 5)
SHINGLE = 5


def first_equal(token_rows: Sequence[tuple[str, ...]]) -> list[int]:
    """For each row the index of the first row with the same tokens (its own if it is new)."""
    seen: dict[tuple[str, ...], int] = {}
    return [seen.setdefault(row, index) for index, row in enumerate(token_rows)]


def near_duplicates(token_rows: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """(earlier, later) for each row that is similar, though not equal, to an earlier one.

    Of several earlier rows the first is given. Rows without tokens are like no other.
    """
    fresh = [index for index, first in enumerate(first_equal(token_rows)) if first == index]
    rows = _ranked({index: token_rows[index] for index in fresh if token_rows[index]})
    prefixes: dict[int, list[int]] = defaultdict(list)
    pairs = []
    for index, row in rows.items():
        prefix = row[: len(row) - -(-len(row) * NEAR.numerator // NEAR.denominator) + 1]
        candidates = sorted({other for rank in prefix for other in prefixes[rank]})
        near = next((other for other in candidates if _similar(row, rows[other])), None)
        if near is not None:
            pairs.append((near, index))
        for rank in prefix:
            prefixes[rank].append(index)
    return pairs


def _ranked(token_rows: dict[int, tuple[str, ...]]) -> dict[int, list[int]]:
    """The set of shingles of each row as sorted numbers; the rarest shingle has the lowest."""
    number: dict[tuple[str, ...], int] = {}
    rows = {
        index: {
            number.setdefault(row[start : start + SHINGLE], len(number))
            for start in range(max(1, len(row) - SHINGLE + 1))
        }
        for index, row in token_rows.items()
    }
    frequency = Counter(shingle for row in rows.values() for shingle in row)
    rank = {
        shingle: place for place, shingle in enumerate(sorted(frequency, key=frequency.__getitem__))
    }
    return {index: sorted(rank[shingle] for shingle in row) for index, row in rows.items()}


def _similar(row: list[int], other: list[int]) -> bool:
    common = len(set(row).intersection(other))
    return common >= NEAR * (len(row) + len(other) - common)
