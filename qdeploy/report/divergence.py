"""Two texts side by side, with the place where they part marked."""

from __future__ import annotations

from dataclasses import dataclass

_BEFORE, _AFTER = 160, 360
"""Characters shown around the first difference while a long text is folded."""

_MARKED = 12
"""Most characters marked of the first difference; Chinese has no spaces to stop at."""

_MOST = 20_000
"""Characters of one text that are put into a page at all."""


@dataclass(frozen=True)
class Parted:
    """A text cut in three: what both share, the first word that differs, the rest."""

    shared: str
    mark: str
    rest: str

    @property
    def long(self) -> bool:
        """Whether the excerpt leaves something out."""
        return len(self.shared) > _BEFORE or len(self.rest) > _AFTER

    @property
    def excerpt(self) -> Parted:
        """The surroundings of the mark."""
        before = self.shared if len(self.shared) <= _BEFORE else f"…{self.shared[-_BEFORE:]}"
        after = self.rest if len(self.rest) <= _AFTER else f"{self.rest[:_AFTER]}…"
        return Parted(before, self.mark, after)


def part(left: str, right: str) -> tuple[Parted, Parted]:
    """Both texts parted at their first difference; equal texts have empty marks."""
    left, right = _capped(left), _capped(right)
    same = next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )
    return _parted(left, same), _parted(right, same)


def _parted(text: str, same: int) -> Parted:
    end = same
    while end < len(text) and text[end].isspace():
        end += 1
    word = end
    while end < len(text) and not text[end].isspace() and end - word < _MARKED:
        end += 1
    return Parted(text[:same], text[same:end], text[end:])


def _capped(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}… ({len(text) - _MOST} more characters)"
