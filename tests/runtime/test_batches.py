"""Grouping items into batches: bounded, by length alone, with little padding."""

from __future__ import annotations

import pytest

from qdeploy.core.errors import InputError
from qdeploy.runtime.model import batches


def test_longest_first_and_everything_once():
    assert batches([3, 9, 5], [1, 1, 1], 1000, 8) == [[1, 2, 0]]
    assert batches([], [], 10, 8) == []


def test_the_token_budget_counts_padding_and_rows():
    assert batches([10, 10, 10], [1, 1, 1], 20, 8) == [[0, 1], [2]]
    assert batches([10, 10], [2, 1], 20, 8) == [[0], [1]]
    assert batches([50], [3], 1, 8) == [[0]]


def test_padding_that_costs_more_than_another_batch_is_not_taken():
    # 24 tokens of padding for each forward pass: 9 passes allow 216.
    assert batches([300, 84, 84], [1, 1, 1], 10_000, 8) == [[0, 1], [2]]
    assert batches([300, 83], [1, 1], 10_000, 8) == [[0], [1]]
    assert batches([300, 83], [1, 1], 10_000, 9) == [[0, 1]]


def test_a_budget_must_be_positive():
    with pytest.raises(InputError, match="batch_tokens must be positive"):
        batches([1], [1], 0, 1)
