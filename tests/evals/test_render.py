from typing import Any

import pytest

from qdeploy.core.errors import InputError
from qdeploy.evals.render import bos_decision, message, render

from .fakes import CharTokenizer, class_item, qa_item

PROMPT = "{{ context }} {{ question }}"


def test_templated_prompts_begin_with_one_bos() -> None:
    tokenizer = CharTokenizer()
    ids = render(PROMPT, qa_item("a"), tokenizer).prompt_ids
    assert ids.count(0) == 1
    assert ids[0] == 0
    assert bos_decision(tokenizer, ids) == "chat template: begins with '<s>', none added"


def test_without_a_template_the_tokenizer_adds_its_own() -> None:
    tokenizer: Any = CharTokenizer()
    tokenizer.chat_template = None
    rendered = render(PROMPT, qa_item("a"), tokenizer)
    assert rendered.prompt_ids == [0] + [ord(char) + 2 for char in "x q"]
    assert "tokenizer (no chat template)" in bos_decision(tokenizer, rendered.prompt_ids)


def test_labels_have_no_bos() -> None:
    item = class_item("是", "no", label="no")
    rendered = render("{{ text }} {{ labels | join('/') }}", item, CharTokenizer())
    assert rendered.label_ids == [[ord("是") + 2], [ord("n") + 2, ord("o") + 2]]


def test_an_unknown_key_names_the_item() -> None:
    with pytest.raises(InputError, match=r"item 'a': 'contxt' is undefined"):
        message("{{ contxt }}", qa_item("a"))


def test_templates_cannot_reach_out() -> None:
    with pytest.raises(InputError, match="unsafe"):
        message("{{ context.__class__.__mro__ }}", qa_item("a"))
