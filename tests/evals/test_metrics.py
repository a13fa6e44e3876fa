import json
import math
import zlib
from typing import Any

import pytest

from qdeploy.evals.items import ExtractionItem
from qdeploy.evals.scoring import Context, Output, metric, metric_names, score_all

from .fakes import class_item, long_item, qa_item

EN, ZH = Context("en"), Context("zh")


def score(name: str, text: str, item: Any, **output: Any) -> float | None:
    return metric(name).score(Output(text, **output), item, Context(item.lang, 10))


@pytest.mark.parametrize(
    ("said", "answers", "em", "f1", "inside"),
    [
        ("Wednesday.", ["wednesday"], 1, 1, 1),
        ("It is 58 crowns", ["58 crowns", "58"], 0, 2 * 2 / 6, 1),
        ("58 58 58 58", ["58"], 0, 2 / 5, 1),
        ("", ["58"], 0, 0, 0),
        ("158", ["58"], 0, 0, 0),
        ("在东门窗口。", ["东门窗口"], 0, 2 * 4 / 9, 1),
        ("东门的窗口", ["东门窗口"], 0, 2 * 4 / 9, 0),
        ("６５元", ["65元"], 1, 1, 1),
        ("<think>58</think>no", ["58"], 0, 0, 0),
    ],
)
def test_short_answers(said: str, answers: list[str], em: float, f1: float, inside: float) -> None:
    item = qa_item(*answers)
    assert score("exact_match", said, item) == em
    assert score("char_f1", said, item) == pytest.approx(f1)
    assert score("contains", said, item) == inside


def test_f1_of_two_empty_texts_is_one() -> None:
    from qdeploy.evals.metrics.char_f1 import f1

    assert f1("。", "") == 1
    assert f1("a", "") == 0


def test_labels() -> None:
    item = class_item("yes", "no", "maybe", label="no")
    output = {"finish_reason": "scored", "label_logprobs": [-2.0, -1.5, -3.0]}
    assert score("accuracy", "no", item, **output) == 1
    assert score("label_margin", "no", item, **output) == pytest.approx(0.5)
    tie = {"finish_reason": "scored", "label_logprobs": [-1.5, -1.5, -3.0]}
    assert score("accuracy", "yes", item, **tie) == 0


def test_a_label_without_a_number_is_reported_not_scored() -> None:
    item = class_item("yes", "no", label="no")
    output = Output("no", finish_reason="scored", label_logprobs=[math.nan, -1.0])
    scores, broken = score_all(["accuracy", "label_margin"], output, item, EN)
    assert scores == {}
    assert broken == ["accuracy", "label_margin"]


@pytest.mark.parametrize(
    ("said", "value", "valid"),
    [
        ('{"no": "7", "total": "$64.50"}', 1.0, 1),
        ('Here:\n```json\n{"no": 7, "total": "64.5"}\n```', 1.0, 1),
        ('{"no": "8", "total": "$64.50"}', 0.5, 1),
        ('{"no": "7", "total": "$64.50", "x": 1, "y": 2}', 2 * 2 / 6, 1),
        ('{"no": "7", "total"', 0.0, 0),
        ("{not json} {}", 0.0, 1),
        ("", 0.0, 0),
        ("[1]", 0.0, 0),
        ('{"no": NaN}', 0.0, 1),
    ],
)
def test_fields(said: str, value: float, valid: float) -> None:
    item = ExtractionItem(
        id="a", lang="en", cluster="c", text="t", fields={"no": "7", "total": "$64.50"}
    )
    assert score("field_f1", said, item) == pytest.approx(value)
    assert score("json_valid", said, item) == valid


def test_chinese_fields() -> None:
    item = ExtractionItem(
        id="a", lang="zh", cluster="c", text="t", fields={"日期": "4月12日", "总额": "286元"}
    )
    said = json.dumps({"日期": "４月12日。", "总额": "285元"}, ensure_ascii=False)
    assert score("field_f1", said, item) == 0.5


def test_loop_free_needs_a_text() -> None:
    item = long_item()
    assert score("loop_free", "", item) == 0
    assert score("loop_free", "fine", item, token_ids=[1, 2]) == 1
    assert score("loop_free", "!!!!!!!!", item, token_ids=[7] * 8) == 0


def slow_seq_rep(ids: list[Any], n: int, window: int) -> float | None:
    values = []
    while len(ids) >= window:
        part, ids = ids[:window], ids[window:]
        grams: list[Any] = []
        repeated = 0
        for i in range(window - n + 1):
            repeated += part[i : i + n] in grams
            grams.append(part[i : i + n])
        values.append(repeated / len(grams))
    return sum(values) / len(values) if values else None


@pytest.mark.parametrize("length", [0, 3, 127, 128, 129, 256, 300])
@pytest.mark.parametrize("period", [1, 5, 40, 1000])
def test_seq_rep_against_a_slow_count(length: int, period: int) -> None:
    ids = [i % period for i in range(length)]
    wanted = slow_seq_rep(ids, 4, 128)
    assert score("seq_rep_4", "x", long_item(), token_ids=ids) == (
        None if wanted is None else pytest.approx(wanted)
    )


def test_unit_rep_counts_han_characters() -> None:
    item = long_item("zh")
    assert score("unit_rep_4", "春" * 128, item) == pytest.approx(1 - 1 / 125)
    assert score("unit_rep_4", "".join(chr(0x4E00 + i) for i in range(128)), item) == 0
    assert score("unit_rep_4", "春" * 127, item) is None


def test_compression_counts_bytes() -> None:
    item = long_item("zh")
    text = "今天天气很好，" * 100
    parts = [text.encode()[i : i + 1024] for i in (0, 1024)]
    wanted = sum(1024 / len(zlib.compress(part)) for part in parts) / 2
    assert score("compression_ratio", text, item) == pytest.approx(wanted)
    assert score("compression_ratio", "", item) is None


def test_ended_and_length() -> None:
    item = long_item()
    assert score("ended", "x", item, finish_reason="length") == 0
    assert score("ended", "x", item) == 1
    assert score("length_ratio", "x", item, token_ids=[1] * 25) == 2.5
    assert metric("length_ratio").score(Output("x", [1]), item, Context("en", 0)) is None


def test_replacement_chars() -> None:
    item = long_item()
    assert score("replacement_chars", "a\ufffdb\x00", item) == 0.5
    assert score("replacement_chars", "abc\ufffd", item, finish_reason="length") == 0
    assert score("replacement_chars", "abc\ufffd", item) == 0.25
    assert score("replacement_chars", "", item) == 0
    assert score("replacement_chars", "a\n\tb", item) == 0


def test_language() -> None:
    assert score("language_ok", "这是一个故事 with code", long_item("zh")) == 1
    assert score("language_ok", "This is English", long_item("zh")) == 0
    assert score("language_ok", "This is English", long_item("en")) == 1
    assert score("language_ok", "这是中文", long_item("en")) == 0
    assert score("language_ok", "", long_item("en")) == 0
    assert score("language_ok", "x", long_item("xx")) is None


@pytest.mark.parametrize(
    ("text", "demands", "value"),
    [
        ("", {}, 0),
        ("Some words.", {}, 1),
        ("```python\nx", {}, 2 / 3),
        ("1. a\n2. b\n3. c", {"numbered_items": 3}, 1),
        ("1. a\n2. b", {"numbered_items": 3}, 2 / 3),
        ("1. a\n3. b", {}, 2 / 3),
        ("第1步 a\n第2步 b", {"numbered_items": 2}, 1),
        ("一、a\n二、b\n三、c", {"numbered_items": 3}, 1),
        ("The drain", {"required_points": ["rain"]}, 3 / 4),
        ("Rain!", {"required_points": ["rain"]}, 1),
        ("下雨天", {"required_points": ["下雨"]}, 1),
        ("name字段", {"required_points": ["name"]}, 1),
        ("短", {"min_chars": 5}, 3 / 4),
        ("```\ncode\n```", {"closed": ["code_fence"]}, 1),
        ("no code", {"closed": ["code_fence"]}, 3 / 4),
        ("|a|b|\n|-|-|\n|1|2|", {"closed": ["table"]}, 1),
        ("|a|b|\n|-|-|\n|1|2|\n|3", {"closed": ["table"]}, 3 / 4),
        ('x [{"a": 1}]', {"closed": ["json"]}, 1),
        ('{"a": [1, 2', {"closed": ["json"]}, 3 / 4),
    ],
)
def test_structure(text: str, demands: dict[str, Any], value: float) -> None:
    assert score("structure", text, long_item(**demands)) == pytest.approx(value)


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_states_what_it_is(name: str) -> None:
    found = metric(name)
    assert found.DIRECTION in ("higher", "lower")
    assert found.RANGE is None or found.RANGE > 0
    assert found.KINDS
    assert found.__doc__
