"""Which process of a run wrote a line of its log.

`[rank3]:` is PyTorch's prefix, `[default3]:` torchrun's, `3:` that of srun, `node-4:` that of pdsh,
`(worker pid=614)` Ray's.
"""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?:\[[a-z]+ ?(\d+)\]:|(\d+):|\((\w+ pid=\d+(?:, ip=[\d.]+)?)\)"
    r"|((?=[\w.-]*\d)(?=[\w.-]*[a-z.])[A-Za-z0-9][\w.-]*):)(?: |$)"
)


def decoded(piece: bytes) -> str:
    """As text, what is not UTF-8 replaced, without colours."""
    return _ANSI.sub("", piece.decode("utf-8", errors="replace"))


def split_prefix(text: str) -> tuple[str, str]:
    """The process that wrote a line, "" for unknown, and the line without its prefixes."""
    names = []
    for _ in range(2):
        found = _PREFIX.match(text)
        if found is None:
            break
        rank = found[1] or found[2]
        names.append(f"rank {int(rank)}" if rank else found[3] or found[4])
        text = text[found.end() :]
    return " ".join(names), text


def names_a_process(stream: str) -> bool:
    """Whether the prefix tells processes apart, not only nodes."""
    return "rank " in stream or "pid=" in stream
