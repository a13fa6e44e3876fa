"""Bytes of the text divided by bytes after zlib, over windows of 1024 UTF-8 bytes.

Whisper flags a transcript above 2.4 (openai/whisper, transcribe.py). Bytes, not characters: a Han
character has three. The ratio grows with length, hence the fixed windows.
"""

from __future__ import annotations

import zlib

from qdeploy.evals.items import Item
from qdeploy.evals.results import Direction
from qdeploy.evals.scoring import Context, Output

DIRECTION: Direction = "lower"
RANGE: float | None = None
KINDS = frozenset({"long_generation"})

_WINDOW_BYTES = 1024


def score(output: Output, item: Item, context: Context) -> float | None:
    """Mean over full windows; None for a text of fewer than 1024 bytes."""
    data = output.text.encode()
    ratios = [
        _WINDOW_BYTES / len(zlib.compress(data[start : start + _WINDOW_BYTES]))
        for start in range(0, len(data) - _WINDOW_BYTES + 1, _WINDOW_BYTES)
    ]
    return sum(ratios) / len(ratios) if ratios else None
