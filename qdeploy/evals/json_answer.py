"""The first JSON object in an answer, whatever stands around it (words, a code fence)."""

from __future__ import annotations

import json
from typing import Any

_DECODER = json.JSONDecoder(parse_constant=lambda constant: constant)


def find_object(text: str) -> dict[str, Any] | None:
    """The first complete JSON object in `text`; None when there is none."""
    found = find_json(text, "{")
    return found if isinstance(found, dict) else None


def find_json(text: str, openers: str = "{[") -> Any:
    """The first complete JSON object or array that starts with one of `openers`, else None."""
    for start, char in enumerate(text):
        if char in openers:
            try:
                return _DECODER.raw_decode(text, start)[0]
            except (json.JSONDecodeError, RecursionError):
                continue
    return None
