"""A chart as an SVG document of its own, for light and dark, beside the page's embedded ones."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

_STYLE = Markup(
    "svg{--bg:#fff;--ink:#1b1f24;--soft:#59636e;--grid:#e6e9ed;--s0:#1f6feb;--s1:#d9580d;"
    "font:14px system-ui,sans-serif;background:var(--bg)}"
    "@media(prefers-color-scheme:dark){svg{--bg:#171c23;--ink:#e4e8ed;--soft:#98a3b0;"
    "--grid:#262d36;--s0:#58a6ff;--s1:#ff9a57}}"
    "text{fill:var(--soft)}.head{fill:var(--ink);font-size:16px;font-weight:600}"
    ".ink{fill:var(--ink)}.bg{fill:var(--bg)}.grid{stroke:var(--grid)}"
)


@dataclass(frozen=True)
class Sheet:
    """The size of the document, and where its heading begins."""

    width: int
    height: int
    left: int


def document(sheet: Sheet, head: str, words: str, style: Markup, drawn: Markup) -> str:
    """The whole document: `head` above `drawn`, `words` for who cannot see it.

    `style` adds to what all have: text, ink, grid, the colours --s0 and --s1.
    """
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" role="img" '
        'aria-labelledby="t d"><title id="t">{head}</title><desc id="d">{words}</desc>'
        '<style>{style}</style><rect class="bg" width="{w}" height="{h}"/>'
        '<text class="head" x="{left}" y="28">{head}</text>{drawn}</svg>\n'
    ).format(
        w=sheet.width, h=sheet.height, left=sheet.left,
        head=head, words=words, style=_STYLE + style, drawn=drawn,
    )  # fmt: skip
