"""One way to read text for all metrics, right for Chinese and for English.

`units` cuts a text into what is compared: NFKC, case folded, punctuation and symbols dropped but
'%', decimal points and minus signs kept; a Han, Kana or Hangul character is a unit by itself, a
run of other letters and a number are one unit each. Nothing is ever split at white space alone.
"""

from __future__ import annotations

import re
import unicodedata

_CJK = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_CJK_WIDE = "\U00020000-\U000323af"
_MARKS = "\u0300-\u036f\u064b-\u065f\u0900-\u0903\u093a-\u094f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"

_UNIT = re.compile(
    rf"(?P<number>(?<![^\W{_CJK}{_CJK_WIDE}])-?\d[\d,]*(?:\.\d+)*|\d[\d,]*(?:\.\d+)*)|%|[{_CJK}{_CJK_WIDE}]"
    rf"|(?:[^\W\d_{_CJK}{_CJK_WIDE}]|[{_MARKS}])+"
)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"-?\d+\.\d+")
_SENTENCE_END = re.compile(r"[。！？!?\n]+|(?<!\d)\.(?=\s|$)")
_NUMBERING = re.compile(r"^\s*(?:[-*#>•]+\s*)*(?:\d+\s*[.)、．:：]\s*)?")

_SCRIPTS = {
    "en": "latin", "de": "latin", "fr": "latin", "es": "latin", "it": "latin", "pt": "latin",
    "nl": "latin", "zh": "han", "ja": "japanese", "ko": "hangul", "ru": "cyrillic",
    "uk": "cyrillic",
}  # fmt: skip
_RANGES = {
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]"),
    "han": re.compile(rf"[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff{_CJK_WIDE}]"),
    "japanese": re.compile(rf"[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff{_CJK_WIDE}]"),
    "hangul": re.compile(r"[\u1100-\u11ff\uac00-\ud7af]"),
    "cyrillic": re.compile(r"[\u0400-\u04ff]"),
}


def units(text: str) -> list[str]:
    """The comparable units of `text`, in order. '价格是１,２８０.50元' -> 价 格 是 1280.5 元.

    Numbers lose thousands separators and trailing zeros of the fraction, so 64.50 equals 64.5;
    dotted numbers with more than one point (versions, addresses) stay as they are.
    """
    folded = unicodedata.normalize("NFKC", text).replace("\u2212", "-").casefold()
    found: list[str] = []
    for match in _UNIT.finditer(folded):
        if match.lastgroup == "number":
            found.extend(_numbers(match.group()))
        else:
            found.append(match.group())
    return found


def _numbers(text: str) -> list[str]:
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    return [_canonical(part) for part in text.split(",") if part]


def _canonical(number: str) -> str:
    return number.rstrip("0").rstrip(".") if _DECIMAL.fullmatch(number) else number


def normalize(text: str) -> str:
    """`text` as its units with one space between: what exact comparison compares."""
    return " ".join(units(text))


def final_answer(text: str) -> str:
    """What a reasoning model answers: the text after its last '</think>'.

    A text that was cut before '</think>' has no answer yet and gives ''.
    """
    if "</think>" in text:
        text = text.rsplit("</think>", 1)[1]
    elif "<think>" in text:
        text = text.split("<think>", 1)[0]
    return text.strip()


def sentences(text: str) -> list[tuple[int, str]]:
    """(character position, normalised sentence) of each sentence or line that says something.

    List markers ('3.', '- ') at the start are dropped, so that a sentence repeated under rising
    numbers is seen as repeated.
    """
    found: list[tuple[int, str]] = []
    start = 0
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    for end in [*ends, len(text)]:
        piece = normalize(_NUMBERING.sub("", text[start:end], count=1))
        if piece:
            found.append((start, piece))
        start = end
    return found


def script_of(lang: str) -> str | None:
    """The script of a language ('zh-CN' -> 'han'), None for a language not known here."""
    return _SCRIPTS.get(lang.replace("_", "-").split("-")[0].casefold())


def script_share(text: str, script: str) -> float:
    """Share of the letters of `text` that belong to `script`; 0 for a text without letters."""
    letters = [char for char in text if char.isalpha()]
    if not letters:
        return 0.0
    return sum(bool(_RANGES[script].match(char)) for char in letters) / len(letters)
