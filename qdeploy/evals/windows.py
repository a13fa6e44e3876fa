"""Repetition measured on windows of one length, since every such measure grows with length.

A text shorter than one window has no value: a short answer is neither varied nor repetitive.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def repeated_share(sequence: Sequence[Hashable], n: int, window: int) -> float | None:
    """Mean over full windows of 1 - |distinct n-grams| / |n-grams|; None without a full window.

    seq-rep-n of Welleck et al., Neural Text Generation with Unlikelihood Training (2019), on
    windows that follow one another without overlap; the rest at the end is left out.
    """
    if n > window:
        raise ValueError(f"n ({n}) must not exceed the window ({window})")
    shares: list[float] = []
    for start in range(0, len(sequence) - window + 1, window):
        part = sequence[start : start + window]
        grams = [tuple(part[at : at + n]) for at in range(window - n + 1)]
        shares.append(1 - len(set(grams)) / len(grams))
    return sum(shares) / len(shares) if shares else None
