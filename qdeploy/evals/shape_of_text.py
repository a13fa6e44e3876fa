"""Structure of a generated text that a program can check: lists, fences, tables, JSON, words."""

from __future__ import annotations

import re
import unicodedata

from qdeploy.evals.json_answer import find_json

_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_NUMBER = r"(?:(?P<digits>\d{1,3})|(?P<han>[一二三四五六七八九十]{1,3}))"
_LINE_START = r"^(?P<indent>\s*)(?:[#>*_-]+\s*)*"
_NUMBERED = (
    re.compile(
        rf"{_LINE_START}(?:(?:step|question|tip|day|phase|q|no\.)\s*)?"
        rf"{_NUMBER}\s*(?:\*\*|__)?\s*[.)、:](?!\d)",
        re.IGNORECASE,
    ),
    re.compile(rf"{_LINE_START}第\s*{_NUMBER}\s*[步条项点]"),
)
_LATIN = r"[0-9a-z_\u00c0-\u024f]"
_RULE_CELL = re.compile(r":?-+:?")
_HAN_DIGITS = {char: value for value, char in enumerate("一二三四五六七八九", start=1)}


def numbering(text: str) -> list[int]:
    """The numbers that begin lines at the outermost level of numbering, in order.

    Reads '1.', '1)', '1、', 'Step 1:', '**1.**', '第1步', '一、'. Code blocks do not count.
    """
    found: list[tuple[int, int]] = []
    for line in _outside_fences(text):
        plain = unicodedata.normalize("NFKC", line)
        match = next(filter(None, (pattern.match(plain) for pattern in _NUMBERED)), None)
        if match:
            indent = len(match["indent"].expandtabs(4))
            found.append((indent, int(match["digits"]) if match["digits"] else _han(match["han"])))
    outermost = min((indent for indent, _ in found), default=0)
    return [number for indent, number in found if indent == outermost]


def _han(numeral: str) -> int:
    """一 .. 九十九 as a number."""
    if "十" not in numeral:
        return _HAN_DIGITS[numeral[0]]
    tens, ones = numeral.split("十", 1)
    return 10 * _HAN_DIGITS.get(tens, 1) + _HAN_DIGITS.get(ones, 0)


def _outside_fences(text: str) -> list[str]:
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return lines


def fences_closed(text: str) -> bool:
    """Whether every code fence that opens also closes."""
    return len(_FENCE.findall(text)) % 2 == 0


def has_code_block(text: str) -> bool:
    """Whether there is a code block and all of them are closed."""
    return bool(_FENCE.search(text)) and fences_closed(text)


def has_json(text: str) -> bool:
    """Whether a complete JSON object or array that is not empty can be read from the text."""
    return bool(find_json(text))


def has_table(text: str) -> bool:
    """Whether there is a Markdown table: a head, a rule, and rows of as many cells as the head."""
    lines = text.splitlines()
    for at in range(1, len(lines) - 1):
        rule = _cells(lines[at])
        if rule and all(_RULE_CELL.fullmatch(cell) for cell in rule):
            rows = [lines[at - 1], lines[at + 1]]
            for line in lines[at + 2 :]:
                if "|" not in line:
                    break
                rows.append(line)
            if all(len(_cells(row)) == len(rule) for row in rows):
                return True
    return False


def _cells(line: str) -> list[str]:
    stripped = line.strip()
    if "|" not in stripped:
        return []
    return [cell.strip() for cell in stripped.strip("|").split("|")]


def has_point(text: str, point: str) -> bool:
    """Whether `point` occurs, as whole words where it begins or ends in a Latin letter or digit."""
    ours = unicodedata.normalize("NFKC", text).casefold()
    wanted = unicodedata.normalize("NFKC", point).casefold().strip()
    before = rf"(?<!{_LATIN})" if re.match(_LATIN, wanted) else ""
    after = rf"(?!{_LATIN})" if re.match(_LATIN, wanted[-1:]) else ""
    return re.search(before + re.escape(wanted) + after, ours) is not None
