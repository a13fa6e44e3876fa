"""Text as a sequence of comparable tokens, for languages with and without spaces.

After NFKC and case folding a token is one Chinese character or kana, or one word of any other
script; punctuation and spacing vanish. So full-width forms, case and layout make no difference.
"""

from __future__ import annotations

import re
import unicodedata

# CJK ideographs (with extensions A to H and the compatibility block), hiragana and katakana.
_CHARACTER = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af\u3040-\u30ff"
_TOKEN = re.compile(f"[{_CHARACTER}]|[^\\W_{_CHARACTER}]+")
_IS_CHARACTER = re.compile(f"[{_CHARACTER}]")


def tokens(text: str) -> tuple[str, ...]:
    """The comparable tokens of `text`: 'INT8 量化' -> ('int8', '量', '化')."""
    return tuple(_TOKEN.findall(unicodedata.normalize("NFKC", text).casefold()))


def is_character(token: str) -> bool:
    """Whether a token of `tokens` is one Chinese character or kana."""
    return _IS_CHARACTER.match(token) is not None
