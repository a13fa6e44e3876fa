"""Conversations as token ids, exactly as the model will see them in service.

A chat is rendered by the model's own template, which writes the special tokens; the tokenizer
then adds none of its own, or the beginning-of-text token would come twice. Plain text gets the
tokenizer's special tokens once. A chat is taken whole, answers included: the activations to be
calibrated are those of reading the question and of writing the answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from qdeploy.calib.data import Conversation
from qdeploy.core.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a local model folder. Raises InputError when there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{folder} holds no usable tokenizer: {reason[0] if reason else type(error).__name__}",
            hint="copy tokenizer.json and tokenizer_config.json from the model's release",
        ) from None
    return tokenizer


def token_ids(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of one conversation, not truncated.

    Raises InputError for a chat when the tokenizer has no chat template, and when the template
    refuses the chat.
    """
    if conversation.messages is None:
        ids = _encode(conversation.text or "", tokenizer, special=True)
        # Exported text often starts with the token already.
        doubled = tokenizer.bos_token_id is not None and ids[:2] == [tokenizer.bos_token_id] * 2
        return ids[1:] if doubled else ids
    return _encode(rendered(conversation, tokenizer), tokenizer, special=False)


def rendered(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of a chat under the tokenizer's chat template. Raises InputError."""
    if not tokenizer.chat_template:
        raise InputError(
            f"{conversation.source} is a chat, but the tokenizer has no chat template",
            hint="use the instruct release of the model or add its chat_template.jinja to the "
            'folder; for a base model give {"text"} rows',
        )
    messages = conversation.messages or ()
    try:
        return _render(messages, tokenizer)
    except TemplateError as error:
        roles = ", ".join(role for role, _ in messages)
        if messages[0][0] == "system" and _renders(messages[1:], tokenizer):
            raise InputError(
                f"{conversation.source}: the model's chat template refuses the role 'system'",
                hint="put the instruction at the start of the first user message, as the model "
                "is served, or remove it",
            ) from None
        raise InputError(
            f"{conversation.source}: the model's chat template refuses the roles {roles}: {error}",
            hint="most templates want user and assistant in turn, the user first",
        ) from None


def _render(messages: tuple[tuple[str, str], ...], tokenizer: PreTrainedTokenizerBase) -> str:
    turns = [{"role": role, "content": content} for role, content in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))


def _renders(messages: tuple[tuple[str, str], ...], tokenizer: PreTrainedTokenizerBase) -> bool:
    try:
        _render(messages, tokenizer)
    except TemplateError:
        return False
    return True


def _encode(text: str, tokenizer: PreTrainedTokenizerBase, *, special: bool) -> list[int]:
    # verbose=False: no warning about model_max_length, rows are cut afterwards.
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
