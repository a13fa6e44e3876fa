from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qdeploy.calib.data import Conversation
from qdeploy.calib.template import load_tokenizer
from qdeploy.core.errors import InputError
from qdeploy.train.labels import IGNORED, Sample, sample_of

ASK = "<|im_start|>user\n{}<|im_end|>\n"
HEAD = "<|im_start|>assistant\n"


@pytest.fixture
def tokenizer(tiny_llama: Path) -> Any:
    return load_tokenizer(tiny_llama)


def chat(*messages: tuple[str, str]) -> Conversation:
    return Conversation(messages, None, "chats.jsonl:1")


def counted(sample: Sample, tokenizer: Any) -> str:
    return str(tokenizer.decode([label for label in sample.labels if label != IGNORED]))


def by_pieces(pieces: list[tuple[str, bool]], tokenizer: Any) -> Sample:
    """Slow and plain: special tokens part the pieces, so each can be tokenized alone."""
    ids: list[int] = []
    labels: list[int] = []
    for text, ours in pieces:
        part = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += part
        labels += part if ours else [IGNORED] * len(part)
    return Sample(ids, labels)


def test_only_answers_count(tokenizer: Any) -> None:
    rows = chat(
        ("system", "Be brief."), ("user", "Où?"), ("assistant", "在星期二。"),
        ("user", "Sure?"), ("assistant", "Yes."),
    )  # fmt: skip
    expected = by_pieces(
        [
            ("<|im_start|>system\nBe brief.<|im_end|>\n", False),
            (ASK.format("Où?") + HEAD, False), ("在星期二。<|im_end|>", True), ("\n", False),
            (ASK.format("Sure?") + HEAD, False), ("Yes.<|im_end|>", True), ("\n", False),
        ],
        tokenizer,
    )  # fmt: skip
    assert sample_of(rows, tokenizer, assistant_only=True) == expected


def test_everything_counts_when_asked(tokenizer: Any) -> None:
    sample = sample_of(chat(("user", "a"), ("assistant", "b")), tokenizer, assistant_only=False)
    assert sample.labels == sample.input_ids


def test_text_ends_with_the_end_token_once(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    for text in ("Wire two is red.", f"Wire two is red.{tokenizer.eos_token}"):
        sample = sample_of(Conversation(None, text, "x.txt:1"), tokenizer, assistant_only=True)
        assert sample.input_ids == sample.labels
        assert sample.input_ids[-1] == end
        assert sample.input_ids.count(end) == 1


def test_a_chat_without_answer_has_nothing_to_count(tokenizer: Any) -> None:
    assert sample_of(chat(("user", "a")), tokenizer, assistant_only=True).counted == 0


@pytest.mark.parametrize(("labels", "expected"), [([], 0), ([5], 0), ([5, 6], 1), ([-100, 6], 1)])
def test_the_first_token_is_predicted_by_none(labels: list[int], expected: int) -> None:
    assert Sample([1] * len(labels), labels).counted == expected


def test_an_answer_that_merges_with_what_is_before_it_counts_from_there(tokenizer: Any) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    sample = sample_of(
        chat(("user", "on"), ("assistant", "Tuesday")), tokenizer, assistant_only=True
    )
    assert "Tuesday" in counted(sample, tokenizer)
    assert "user" not in counted(sample, tokenizer)


def test_a_template_that_rewrites_earlier_answers_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
        "{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    one = chat(("user", "a"), ("assistant", "b"))
    sample = sample_of(one, tokenizer, assistant_only=True)
    assert counted(sample, tokenizer) == "<think></think>b<|im_end|>"
    two = chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    with pytest.raises(InputError, match=r"chats.jsonl:1.*message 2.*differently"):
        sample_of(two, tokenizer, assistant_only=True)


def test_a_tokenizer_without_template_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        sample_of(chat(("user", "a"), ("assistant", "b")), tokenizer, assistant_only=True)
