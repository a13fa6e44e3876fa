"""Does the calibration data hold items of the evaluation? Then the comparison flatters the result.

An item counts as leaked when a calibration row shares with it
- 13 words in a row (the n-gram of GPT-3's overlap study, Brown et al. 2020, appendix C, and of
  lm-evaluation-harness, docs/decontamination.md), for text in scripts with spaces;
- or 20 tokens in a row of which at least half are Chinese characters or kana;
- or, for an item's string too short for either, a user message or plain text of at least
  6 tokens that is equal to it.

An instruction that all prompts of a business share is no leak: a match found in more than 10
different rows and in more than 10 items is counted apart. Limits: paraphrases and translations
are not seen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from qdeploy.calib.data import Conversation, read_text
from qdeploy.calib.normalise import is_character, tokens
from qdeploy.core.errors import InputError

WORDS = 13
CHARACTERS = 20
SHORTEST_WHOLE = 6
SHARED = 10

Key = tuple[str, ...]


@dataclass(frozen=True)
class EvalItem:
    """One line of an evaluation file: 'FILE:LINE' and all its string values, nested ones too."""

    source: str
    strings: tuple[str, ...]


@dataclass(frozen=True)
class Leakage:
    """Overlap of calibration rows and evaluation items."""

    leaks: list[tuple[int, int]]
    """(item index, row index): for each leaked item the first row that holds it."""
    shared_passages: int
    """Matches common to more than 10 rows and 10 items, taken for a shared instruction."""


def eval_files(path: Path) -> list[Path]:
    """The JSONL files of `path` (a file or a folder). Raises InputError when there are none."""
    files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
    if not files:
        raise InputError(
            f"{path} holds no evaluation items (*.jsonl)", hint="give the folder of your suites"
        )
    return files


def read_items(path: Path) -> list[EvalItem]:
    """The items of one JSONL file of any schema. Raises InputError that names the line."""
    items = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            try:
                item = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}:{number} is not JSON: {error.msg}") from None
            items.append(EvalItem(f"{path}:{number}", tuple(_strings(item))))
    return items


def find_leakage(
    conversations: Sequence[Conversation], items: Sequence[EvalItem], first_equal: Sequence[int]
) -> Leakage:
    """Which `items` the `conversations` hold.

    `first_equal[row]` is the row's first exact duplicate: copies of a row count once.
    """
    holders: dict[Key, set[int]] = defaultdict(set)
    for number, item in enumerate(items):
        for string in item.strings:
            for key in _keys(tokens(string), whole=True):
                holders[key].add(number)
    hits: dict[Key, list[int]] = defaultdict(list)
    for row, conversation in enumerate(conversations):
        if first_equal[row] == row:
            for key in _row_keys(conversation) & holders.keys():
                hits[key].append(row)
    leaks: dict[int, int] = {}
    shared = 0
    for key, rows in hits.items():
        if len(rows) > SHARED and len(holders[key]) > SHARED:
            shared += 1
            continue
        for number in holders[key]:
            leaks[number] = min(rows[0], leaks.get(number, rows[0]))
    return Leakage(sorted(leaks.items()), shared)


def _row_keys(conversation: Conversation) -> set[Key]:
    messages = conversation.messages or (("user", conversation.text or ""),)
    # A short answer ("I do not know that.") may equal a reference answer by chance, and a short
    # system message may be an instruction of the business.
    return {key for role, text in messages for key in _keys(tokens(text), whole=role == "user")}


def _keys(row: Key, *, whole: bool) -> set[Key]:
    """What two texts must share to count as overlapping: n-grams, or a short text as a whole."""
    keys = set(_ngrams(row))
    return {row} if whole and not keys and len(row) >= SHORTEST_WHOLE else keys


def _ngrams(row: Key) -> Iterator[Key]:
    characters = [0, *accumulate(is_character(token) for token in row)]
    for start in range(len(row) - WORDS + 1):
        if characters[start + WORDS] == characters[start]:
            yield row[start : start + WORDS]
    for start in range(len(row) - CHARACTERS + 1):
        if 2 * (characters[start + CHARACTERS] - characters[start]) >= CHARACTERS:
            yield row[start : start + CHARACTERS]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
