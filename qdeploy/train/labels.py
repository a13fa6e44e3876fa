"""Which tokens of a conversation the loss counts.

Most chat templates do not say which tokens are the assistant's: `{% generation %}` markers are
rare. So the conversation is rendered up to each answer, without and with it, and the ids are
compared: what the answer adds is the assistant's, up to and with the token that ends the turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from qdeploy.calib.data import Conversation
from qdeploy.calib.template import rendered, token_ids
from qdeploy.core.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""The label of a token that the loss does not count (torch's ignore_index)."""


@dataclass(frozen=True)
class Sample:
    """One sample: token ids, and the same ids as labels where the loss counts them."""

    input_ids: list[int]
    labels: list[int]

    def cut(self, tokens: int) -> Sample:
        """The first `tokens` tokens."""
        return Sample(self.input_ids[:tokens], self.labels[:tokens])

    @property
    def counted(self) -> int:
        """Tokens of the loss: the first token is predicted by none."""
        return sum(label != IGNORED for label in self.labels[1:])


def sample_of(
    conversation: Conversation, tokenizer: PreTrainedTokenizerBase, *, assistant_only: bool
) -> Sample:
    """The tokens of `conversation` and their labels.

    Plain text ends with the end-of-text token and counts whole. Raises InputError where the
    template refuses the chat, and where it writes an answer differently once the chat goes on.
    """
    ids = token_ids(conversation, tokenizer)
    if conversation.messages is None:
        end = tokenizer.eos_token_id
        if end is not None and ids[-1:] != [end]:
            ids = [*ids, end]
        return Sample(ids, list(ids))
    if not assistant_only:
        return Sample(ids, list(ids))
    labels = [IGNORED] * len(ids)
    for start, stop in _spans(conversation, ids, tokenizer):
        labels[start:stop] = ids[start:stop]
    return Sample(ids, labels)


def _spans(
    conversation: Conversation, ids: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int, int]]:
    """Where the assistant's answers lie in `ids`."""
    messages = conversation.messages or ()
    whole = rendered(conversation, tokenizer)
    spans = []
    for position, (role, _) in enumerate(messages):
        if role != "assistant":
            continue
        before = _asked(conversation, position, tokenizer)
        until = rendered(_up_to(conversation, position + 1), tokenizer)
        if not whole.startswith(until.rstrip()):
            raise InputError(
                f"{conversation.source}: the chat template writes message {position + 1}, an "
                "answer, differently once the chat goes on, so its tokens cannot be told",
                hint="split the chat into one row for each answer, or set "
                "data.assistant_only_loss: false",
            )
        # Whitespace after the end of the turn belongs to the template: nobody waits for it.
        start = _shared(ids, _ids(before, tokenizer))
        stop = _shared(ids, _ids(until.rstrip(), tokenizer))
        spans.append((start, max(start, stop)))
    return spans


def _asked(conversation: Conversation, position: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The chat before message `position`, with the head of an answer."""
    turns = [
        {"role": role, "content": content}
        for role, content in (conversation.messages or ())[:position]
    ]
    if not turns:
        return ""
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise InputError(
            f"{conversation.source}: the chat template refuses the chat before message "
            f"{position + 1}: {error}",
            hint="most templates want user and assistant in turn, the user first",
        ) from None


def _up_to(conversation: Conversation, messages: int) -> Conversation:
    return Conversation((conversation.messages or ())[:messages], None, conversation.source)


def _ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    encoded: Any = tokenizer(text, add_special_tokens=False, verbose=False)
    return list(encoded["input_ids"])


def _shared(left: list[int], right: list[int]) -> int:
    """How many ids both begin with."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )
