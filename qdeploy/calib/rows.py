"""One row of a data file (keys and values) as a conversation.

Four forms are told apart by their keys, in this order; other keys (id, lang, ...) are ignored:

1. `messages`: [{"role", "content"}], as the OpenAI API writes them
2. `conversations`: [{"from", "value"}], ShareGPT
3. a question and an answer, one of `PAIRS`; `input` or `context` is appended to the question, as
   Alpaca's rows mean it, and `system` becomes the system message
4. `text`: plain text
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdeploy.calib.data import Conversation
from qdeploy.core.errors import InputError

PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("query", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
)

ACCEPTED = (
    '{"messages": [{"role", "content"}]}, {"conversations": [{"from", "value"}]}, '
    '{"prompt", "response"}, {"question", "answer"}, {"instruction", "input", "output"} '
    'or {"text"}'
)

_MORE_INPUT = ("input", "context")

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}


def conversation(row: Any, source: str) -> Conversation:
    """`row` as a conversation; `source` ('FILE:LINE') names it in errors.

    Raises InputError that shows the row's keys and types, never its values.
    """
    if not isinstance(row, Mapping):
        raise InputError(f"{source}: a row must be an object, found {_kind(row)}", hint=_hint())
    system = _system(row, source)
    if "messages" in row:
        return _chat(row["messages"], ("role", "content"), "messages", system, source)
    if "conversations" in row:
        return _chat(row["conversations"], ("from", "value"), "conversations", system, source)
    for question, answer in PAIRS:
        if question in row and answer in row:
            asked = ("user", _question(row, question, source))
            answered = ("assistant", _text(row[answer], answer, source))
            return Conversation((*system, asked, answered), None, source)
    if "text" in row:
        return Conversation(None, _text(row["text"], "text", source), source)
    raise InputError(f"{source}: no known form of row, found {shown_keys(row)}", hint=_hint())


def shown_keys(row: Mapping[Any, Any]) -> str:
    """Keys and types of a row for an error message: 'id (text), score (number)'."""
    shown = [f"{str(key)[:30]} ({_kind(value)})" for key, value in list(row.items())[:12]]
    return ", ".join(shown) or "no keys"


def _system(row: Mapping[str, Any], source: str) -> tuple[tuple[str, str], ...]:
    value = row.get("system")
    if value is None or value == "":
        return ()
    return (("system", _text(value, "system", source)),)


def _question(row: Mapping[str, Any], key: str, source: str) -> str:
    parts = [_text(row[key], key, source)]
    for extra in _MORE_INPUT:
        if row.get(extra) not in (None, ""):
            parts.append(_text(row[extra], extra, source))
    return "\n".join(parts)


def _chat(
    items: Any,
    keys: tuple[str, str],
    name: str,
    system: tuple[tuple[str, str], ...],
    source: str,
) -> Conversation:
    if not isinstance(items, list) or not items:
        found = "an empty list" if items == [] else _kind(items)
        raise InputError(
            f"{source}: {name!r} must be a list of messages, found {found}", hint=_hint()
        )
    messages = [
        message
        for number, item in enumerate(items, 1)
        if (message := _message(item, keys, f"{source}: message {number}")) is not None
    ]
    if system and messages and messages[0][0] != "system":
        messages = [*system, *messages]
    if all(role == "system" for role, _ in messages):
        raise InputError(f"{source}: {name!r} holds no message of a user or an assistant")
    return Conversation(tuple(messages), None, source)


def _message(item: Any, keys: tuple[str, str], where: str) -> tuple[str, str] | None:
    """(role, content) of one message; None for a system message that is empty."""
    role_key, content_key = keys
    if not isinstance(item, Mapping) or role_key not in item or content_key not in item:
        found = shown_keys(item) if isinstance(item, Mapping) else _kind(item)
        raise InputError(
            f"{where} must be an object with {role_key!r} and {content_key!r}, found {found}"
        )
    role = _ROLES.get(item[role_key]) if isinstance(item[role_key], str) else None
    if role is None:
        raise InputError(
            f"{where}: {role_key!r} must be one of {', '.join(_ROLES)}, found "
            f"{_shown_role(item[role_key])}"
        )
    if item.get("tool_calls"):
        raise InputError(
            f"{where} calls tools, which the readers do not render",
            hint="write the call into the content as the model's template would, or leave the "
            "row out",
        )
    content = item[content_key]
    if isinstance(content, list):
        content = _joined_parts(content, where)
    if role == "system" and content in (None, ""):
        return None
    return role, _text(content, content_key, where)


def _joined_parts(parts: list[Any], where: str) -> str:
    """The text of OpenAI's content parts: [{"type": "text", "text": ...}]."""
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            found = shown_keys(part) if isinstance(part, Mapping) else _kind(part)
            raise InputError(f"{where}: only text parts are read, found a part with {found}")
    return "".join(part["text"] for part in parts)


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: {key!r} must be text, found {_kind(value)}")
    if not value.strip():
        raise InputError(f"{where}: {key!r} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: {key!r} holds half of a surrogate pair, which is no character",
            hint="the text was cut inside an emoji or a rare character when it was exported",
        ) from None
    return value


def _shown_role(value: Any) -> str:
    """A role as found when it can only be a name; its type where it may be content."""
    if isinstance(value, str) and value.isascii() and value.isidentifier() and len(value) <= 20:
        return repr(value)
    return _kind(value)


def _kind(value: Any) -> str:
    for kind, name in ((bool, "true/false"), (str, "text"), ((int, float), "number")):
        if isinstance(value, kind):
            return name
    names = {type(None): "null", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _hint() -> str:
    return f"accepted: {ACCEPTED}"
