from __future__ import annotations

from typing import Any

import pytest

from qdeploy.evals.compare import TaskClass, compare_class
from qdeploy.report.divergence import part
from qdeploy.report.examples import lost_and_won


@pytest.mark.parametrize(
    ("left", "right", "shared", "marks"),
    [
        ("It sails on Monday.", "It sails on Friday.", "It sails on ", ("Monday.", "Friday.")),
        ("Monday", "Monday morning", "Monday", ("", " morning")),
        ("same", "same", "same", ("", "")),
        ("", "", "", ("", "")),
        ("", "text", "", ("", "text")),
        ("渡轮星期三不开。", "渡轮星期五不开。", "渡轮星期", ("三不开。", "五不开。")),
    ],
)
def test_texts_part_at_their_first_difference(
    left: str, right: str, shared: str, marks: tuple[str, str]
) -> None:
    ours, theirs = part(left, right)
    assert (ours.shared, theirs.shared) == (shared, shared)
    assert (ours.mark, theirs.mark) == marks
    assert ours.shared + ours.mark + ours.rest == left
    assert theirs.shared + theirs.mark + theirs.rest == right


def test_long_texts_are_folded_around_the_difference_and_capped() -> None:
    before, after = "a " * 500, " b" * 20_000
    ours, _ = part(f"{before}X{after}", f"{before}Y{after}")
    assert ours.long
    assert ours.excerpt.mark == "X"
    assert ours.excerpt.shared.startswith("…")
    assert ours.excerpt.rest.endswith("…")
    assert len(ours.excerpt.shared + ours.excerpt.rest) < 600
    assert ours.rest.endswith("more characters)")
    assert not part("short", "text")[0].long


def test_the_largest_loss_comes_first_and_wins_are_shown_apart(factory: Any) -> None:
    items = factory.Items("short_qa", "zh", n=6)
    items.scores["int8"] = {
        1: {"exact_match": 0.0, "char_f1": 0.5},
        3: {"exact_match": 0.0, "char_f1": 0.0},
        4: {"char_f1": 0.8},
    }
    items.scores["bf16"] = {5: {"exact_match": 0.0}}
    both = {
        name: {s.id: s for s in (factory.sample(items, name, at) for at in range(6))}
        for name in ("bf16", "int8")
    }
    task = TaskClass(
        items.name, "short_qa", "short_qa", "zh", tuple(both["bf16"]), 0,
        ("char_f1", "exact_match"), "exact_match", 0.0,
    )  # fmt: skip
    result, _ = compare_class(task, both["bf16"], {"int8": both["int8"]}, {})
    assert result is not None
    samples = [list(both[name].values()) for name in ("bf16", "int8")]
    lost, won = lost_and_won(result, samples[0], samples[1], ("bf16", "int8"), 5)
    assert [item.id[-3:] for item in lost] == ["003", "001", "004"]
    assert [item.id[-3:] for item in won] == ["005"]
    assert "exact_match 1 → 0" in lost[0].scores
    assert lost_and_won(result, samples[0], samples[1], ("bf16", "int8"), 1)[0] == lost[:1]
    assert lost_and_won(result, [], [], ("bf16", "int8"), 3) == ([], [])
