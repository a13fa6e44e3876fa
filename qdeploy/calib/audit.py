"""`qdeploy calib check`: is this data fit to calibrate on?

Counts, scripts, lengths, duplicates, overlap with the evaluation, personal data. Everything is
said by number and by place ('FILE:LINE'); no text of the data enters the result.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from qdeploy.calib.data import Conversation, data_files, read_file
from qdeploy.calib.duplicates import first_equal, near_duplicates
from qdeploy.calib.leakage import eval_files, find_leakage, read_items
from qdeploy.calib.normalise import tokens
from qdeploy.calib.pii import KINDS, count_pii
from qdeploy.calib.template import token_ids
from qdeploy.core.artifacts import Artifact, sha256_file
from qdeploy.core.schema import Schema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EXAMPLES = 10


class Lengths(Schema):
    """Lengths of the rows; percentiles by nearest rank."""

    min: int
    median: int
    p95: int
    max: int
    total: int


class Pair(Schema):
    """Two places, each 'FILE:LINE': an earlier row, or an evaluation item, and a row."""

    first: str
    row: str


class Duplicates(Schema):
    """Rows that repeat an earlier one; system messages are not compared."""

    exact: int
    """Equal after normalisation (Unicode form, case, punctuation, spacing)."""
    near: int
    """Not equal, Jaccard similarity of the 5-grams at least 0.8."""
    examples: list[Pair]


class SuiteOverlap(Schema):
    """Items of one evaluation file that the data holds."""

    file: str
    items: int
    leaked: int
    examples: list[Pair]


class Finding(Schema):
    """What a person should act on; a blocking one makes the check fail."""

    level: Literal["block", "warn"]
    text: str


class CalibAudit(Artifact):
    """The result of the check of one set of calibration data."""

    SCHEMA: ClassVar[str] = "qdeploy.calib_audit/1"

    rows: int
    chats: int
    texts: int
    by_reader: dict[str, int]
    """Reader (file suffix) -> rows."""
    with_system: int
    unanswered: int
    """Chats whose last message is not an assistant's."""
    scripts: dict[str, int]
    """Script of most letters (Unicode's name for it: LATIN, CJK, ...) -> rows."""
    han_share: float
    """Chinese characters among all letters of the data."""
    characters: Lengths
    tokens: Lengths | None
    """Under the model's template, when a model was given."""
    duplicates: Duplicates
    leakage: list[SuiteOverlap]
    shared_passages: int
    """Passages common to many rows and many items, taken for a shared instruction."""
    pii: dict[str, int]
    """Kind of personal data -> occurrences."""
    pii_rows: int
    findings: list[Finding]

    @property
    def blocked(self) -> bool:
        """Whether a finding forbids to calibrate on this data."""
        return any(finding.level == "block" for finding in self.findings)


def audit(
    data: Path, *, tokenizer: PreTrainedTokenizerBase | None = None, evals: Path | None = None
) -> CalibAudit:
    """Check `data` (a file or folder), against the JSONL files of `evals` when given.

    Raises InputError for whatever `read_data` refuses, for chats that the tokenizer's template
    refuses, and for evaluation files that cannot be read.
    """
    files = data_files(data)
    suites = eval_files(evals) if evals else []
    by_file = {file: read_file(file) for file in files}
    rows = [row for file in files for row in by_file[file]]
    chats = [row.messages for row in rows if row.messages is not None]
    texts = [_text(row) for row in rows]
    scripts = [_letters(text) for text in texts]
    letters = sum(scripts, Counter[str]())
    overlaps, shared = _leakage(rows, suites)
    personal = [count_pii(text) for text in texts]
    facts = CalibAudit(
        inputs={str(file): sha256_file(file) for file in [*files, *suites]},
        rows=len(rows),
        chats=len(chats),
        texts=len(rows) - len(chats),
        by_reader=_by_reader(by_file),
        with_system=sum(messages[0][0] == "system" for messages in chats),
        unanswered=sum(messages[-1][0] != "assistant" for messages in chats),
        scripts=dict(Counter(_most(found) for found in scripts).most_common()),
        han_share=letters["CJK"] / max(1, letters.total()),
        characters=_lengths([len(text) for text in texts]),
        tokens=_lengths([len(token_ids(row, tokenizer)) for row in rows]) if tokenizer else None,
        duplicates=_duplicates(rows),
        leakage=overlaps,
        shared_passages=shared,
        pii={kind: sum(counts[kind] for counts in personal) for kind in KINDS},
        pii_rows=sum(any(counts.values()) for counts in personal),
        findings=[],
    )
    return facts.model_copy(update={"findings": _findings(facts)})


def _findings(facts: CalibAudit) -> list[Finding]:
    findings = [
        Finding(
            level="block",
            text=f"{suite.leaked} of {suite.items} items of {suite.file} are in the data: "
            "the comparison would flatter the quantized model; remove those rows",
        )
        for suite in facts.leakage
        if suite.leaked
    ]
    if doubled := facts.duplicates.exact + facts.duplicates.near:
        text = f"{doubled} of {facts.rows} rows repeat earlier ones and add nothing"
        findings.append(Finding(level="warn", text=text))
    if facts.unanswered:
        text = (
            f"{facts.unanswered} of {facts.chats} chats end without an answer: the activations "
            "of answering are then not calibrated"
        )
        findings.append(Finding(level="warn", text=text))
    if facts.pii_rows:
        text = f"{facts.pii_rows} of {facts.rows} rows look as if they hold personal data"
        findings.append(Finding(level="warn", text=text))
    return findings


def _by_reader(by_file: dict[Path, list[Conversation]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for file, found in by_file.items():
        counts[file.suffix.lower().removeprefix(".")] += len(found)
    return dict(counts)


def _duplicates(rows: Sequence[Conversation]) -> Duplicates:
    # A system message that all chats share would make different short chats look alike.
    compared = [tokens(_text(row, system=False)) for row in rows]
    exact = [(first, row) for row, first in enumerate(first_equal(compared)) if first != row]
    near = near_duplicates(compared)
    examples = sorted([*exact, *near], key=lambda pair: pair[1])[:_EXAMPLES]
    return Duplicates(
        exact=len(exact),
        near=len(near),
        examples=[Pair(first=rows[a].source, row=rows[b].source) for a, b in examples],
    )


def _leakage(rows: Sequence[Conversation], suites: list[Path]) -> tuple[list[SuiteOverlap], int]:
    by_file = {file: read_items(file) for file in suites}
    items = [item for found in by_file.values() for item in found]
    first = first_equal([tokens(_text(row)) for row in rows])
    leakage = find_leakage(rows, items, first)
    overlaps = []
    start = 0
    for file, found in by_file.items():
        inside = range(start, start + len(found))
        start += len(found)
        leaks = [(item, row) for item, row in leakage.leaks if item in inside]
        examples = [
            Pair(first=items[item].source, row=rows[row].source) for item, row in leaks[:_EXAMPLES]
        ]
        overlaps.append(
            SuiteOverlap(file=str(file), items=len(found), leaked=len(leaks), examples=examples)
        )
    return overlaps, leakage.shared_passages


def _text(row: Conversation, *, system: bool = True) -> str:
    if row.messages is None:
        return row.text or ""
    return "\n".join(text for role, text in row.messages if system or role != "system")


def _lengths(values: list[int]) -> Lengths:
    ranked = sorted(values)
    median, p95 = (ranked[-(-len(ranked) * percent // 100) - 1] for percent in (50, 95))
    return Lengths(min=ranked[0], median=median, p95=p95, max=ranked[-1], total=sum(ranked))


def _letters(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for character, number in Counter(text).items():
        if character.isalpha():
            counts[_script(character)] += number
    return counts


@cache
def _script(character: str) -> str:
    """The first word of a letter's Unicode name: LATIN, CJK, HIRAGANA, CYRILLIC, ..."""
    return unicodedata.name(character, "OTHER").split()[0].split("-")[0]


def _most(counts: Counter[str]) -> str:
    return counts.most_common(1)[0][0] if counts else "NONE"
