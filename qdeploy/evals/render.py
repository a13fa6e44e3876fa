"""From an item to token ids, once for all candidates.

The prompt's template gives the user's message, the baseline tokenizer's chat template the text,
the tokenizer the ids. A chat template writes the begin-of-sequence token itself when the model
wants one, so nothing is added after it; a tokenizer without a chat template adds its own special
tokens to the plain prompt. Either way there is never more than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from qdeploy.core.errors import InputError
from qdeploy.evals.items import ClassificationItem, Item

_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


@dataclass(frozen=True)
class Rendered:
    """An item as token ids."""

    item: Item
    prompt_ids: list[int]
    label_ids: list[list[int]]
    """Of a classification: each label's tokens, as they follow the prompt; else empty."""


def template(text: str) -> Template:
    """The prompt's template. Raises jinja2.TemplateSyntaxError."""
    return _ENVIRONMENT.from_string(text)


def message(prompt: str, item: Item) -> str:
    """The user's message for an item. Raises InputError when the template wants another key."""
    try:
        return template(prompt).render(**item.model_dump(by_alias=True)).strip()
    except TemplateError as error:
        raise InputError(f"the prompt fails on item {item.id!r}: {error.message}") from None


def render(prompt: str, item: Item, tokenizer: Any) -> Rendered:
    """The item's token ids by a Hugging Face tokenizer."""
    text = message(prompt, item)
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
    ids = _encode(tokenizer, text, special=not tokenizer.chat_template)
    labels: list[list[int]] = []
    if isinstance(item, ClassificationItem):
        labels = [_encode(tokenizer, label, special=False) for label in item.labels]
    return Rendered(item, ids, labels)


def _encode(tokenizer: Any, text: str, special: bool) -> list[int]:
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]


def bos_decision(tokenizer: Any, prompt_ids: list[int]) -> str:
    """How prompts begin, in words, for the report."""
    source = "chat template" if tokenizer.chat_template else "tokenizer (no chat template)"
    bos = tokenizer.bos_token_id
    if bos is None or prompt_ids[:1] != [bos]:
        return f"{source}: no begin-of-sequence token"
    return f"{source}: begins with {tokenizer.bos_token!r}, none added"
