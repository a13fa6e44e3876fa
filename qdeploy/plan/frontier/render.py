"""A frontier as tables and a plot of block characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdeploy.plan.frontier.schema import Frontier, Point

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_BOTH, _CHECKPOINTED, _NEITHER = "█", "▒", "·"
_CELL = 6


def frontier_table(frontier: Frontier) -> RenderableType:
    """Micro-batches by length, lengths by micro-batch, and both as a plot."""
    from rich.console import Group
    from rich.text import Text

    offload = "" if frontier.offload == "none" else f", {frontier.offload} on the host"
    heading = (
        f"What fits of {frontier.strategy}{offload}: {frontier.model} on {frontier.gpus} x "
        f"{frontier.gpu}, {frontier.accumulation_steps} micro-batches a step"
    )
    return Group(
        Text(heading),
        _by_seq_len(frontier),
        _by_micro_batch(frontier),
        Text(frontier_plot(frontier)),
    )


def frontier_plot(frontier: Frontier) -> str:
    """Micro-batch over sequence length; what fits is filled, the asked size marked."""
    with_it, without = frontier.curves
    lengths = [point.seq_len for point in with_it.by_seq_len]
    lines = ["micro-batch"]
    for size in _rows(frontier):
        cells = [
            _cell(frontier, length, size, (kept.micro_batch, checkpointed.micro_batch))
            for length, checkpointed, kept in zip(
                lengths, with_it.by_seq_len, without.by_seq_len, strict=True
            )
        ]
        lines.append(f"{size:>6} │{''.join(cells)}")
    lines.append(f"{'':>6} └{'─' * _CELL * len(lengths)}")
    lines.append(f"{'':>8}{''.join(f'{short(length):<{_CELL}}' for length in lengths)} tokens")
    verdict = "fits" if frontier.asked_fits else "does not fit"
    lines.append(
        f"{_BOTH} fits  {_CHECKPOINTED} fits with checkpointing  {_NEITHER} does not fit  "
        f"[] what was asked for, {verdict}"
    )
    return "\n".join(lines)


def short(tokens: int) -> str:
    """Tokens in few characters: 131072 is 128k."""
    if tokens >= 1024 and tokens % 1024 == 0:
        return f"{tokens // 1024}k"
    return str(tokens)


def _rows(frontier: Frontier) -> list[int]:
    """Micro-batches of the plot, the largest first: powers of two and the asked one."""
    largest = max(
        frontier.asked_micro_batch,
        *(point.micro_batch for curve in frontier.curves for point in curve.by_seq_len),
    )
    powers = {1 << power for power in range(largest.bit_length())}
    return sorted(powers | {frontier.asked_micro_batch}, reverse=True)


def _cell(frontier: Frontier, length: int, size: int, most: tuple[int, int]) -> str:
    kept, checkpointed = most
    mark = _BOTH if size <= kept else _CHECKPOINTED if size <= checkpointed else _NEITHER
    if (length, size) == (frontier.asked_seq_len, frontier.asked_micro_batch):
        return f"[{mark * (_CELL - 3)}] "
    return f"{mark * (_CELL - 1)} "


def _by_seq_len(frontier: Frontier) -> Table:
    return _table(
        "Largest micro-batch",
        "tokens",
        [
            (f"{pair[0].seq_len}", [_sizes(point, point.micro_batch) for point in pair])
            for pair in _pairs([curve.by_seq_len for curve in frontier.curves])
        ],
    )


def _by_micro_batch(frontier: Frontier) -> Table:
    return _table(
        "Longest sequence",
        "micro-batch",
        [
            (f"{pair[0].micro_batch}", [_sizes(point, point.seq_len) for point in pair])
            for pair in _pairs([curve.by_micro_batch for curve in frontier.curves])
            if any(point.tokens for point in pair)
        ],
    )


def _pairs(lists: list[list[Point]]) -> list[tuple[Point, ...]]:
    return list(zip(*lists, strict=True))


def _sizes(point: Point, found: int) -> list[str]:
    if point.relative_token_time is None:
        return ["none", "", ""]
    more = "+" if point.at_limit else ""
    return [f"{found}{more}", f"{point.tokens}", f"{point.relative_token_time:.2f}"]


def _table(title: str, given: str, rows: list[tuple[str, list[list[str]]]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in (given, "checkpointed", "tokens/GPU", "time", "not", "tokens/GPU", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cells in rows:
        table.add_row(name, *(cell for way in cells for cell in way))
    return table
