"""Reads a training log of any size and returns its worst out-of-memory message.

The lines of several ranks may be mixed; each process (`streams`) is followed apart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB
from qdeploy.plan.oom.frames import begins_traceback, find_operation, find_phase, recomputes
from qdeploy.plan.oom.messages import (
    USAGE,
    USAGE_HOST,
    USAGE_LABEL,
    Message,
    find_message,
    is_whole,
    marked_lines,
    read_sizes,
    with_call,
)
from qdeploy.plan.oom.schema import MemoryUsage, OomReport, Operation, Phase
from qdeploy.plan.oom.streams import decoded, names_a_process, split_prefix

_BLOCK_BYTES = 1 << 20
_CONTEXT_BYTES = 1 << 19
_PIECE_BYTES = 1 << 16
_LINE_BYTES = 400
# A message goes on for so many lines of its stream, and of the log.
_MESSAGE_LINES = 12
_MESSAGE_SPAN = 4000
_TRACEBACK_LINES = 400
_OPERATION_LINES = 60
_CALL_LINES = 30

_BOX = re.compile(r"[\s│┃|╭╮╰╯─❱]+")
_KILLED_PROCESS = re.compile(r"(?:PID|pid:|process) (\d+)")
_PROGRESS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (
        "load",
        re.compile(
            r"Loading checkpoint shards|Loading weights|from_pretrained|partitions|[Ii]nitializ"
        ),
    ),
    ("save", re.compile(r"Saving model checkpoint|Saving checkpoint|save_checkpoint\]")),
    ("unknown", re.compile(r"'loss':|\bloss[:=] ?\d|[0-9]s/it|it/s\]")),
)
# A rank that dies of its own message makes the launcher kill the others, so a kill counts last.
_WEIGHT = {"device": 5, "pinned": 4, "nccl": 3, "cublas": 2, "host": 1}


@dataclass
class _Event:
    """A message, the lines it goes on over, and what the run was doing."""

    message: Message
    stream: str
    rank: str
    line: int
    phase: Phase
    operation: Operation | None
    recomputes: bool
    usage: MemoryUsage | None
    text: str = ""
    lines_left: int = 0

    def goes_on_with(self, line: str) -> None:
        """Take `line` of the same stream for the message's, as long as the message lasts."""
        self.text += _compact(line)
        blank = not line.strip()
        self.lines_left = 0 if blank or is_whole(self.text) else self.lines_left - 1

    @property
    def severity(self) -> tuple[bool, int, int, int, int]:
        """Larger is worse; among equals the earlier message stands."""
        message = self.message
        short = (message.tried_bytes or 0) - (message.free_bytes or 0)
        weight = _WEIGHT[message.kind] + (3 if message.known > 1 else 0)
        return (message.certain, weight, message.known, short, -self.line)


@dataclass
class _Reader:
    """The state while a log is read from its beginning to its end."""

    events: list[_Event] = field(default_factory=list)
    open_events: dict[str, _Event] = field(default_factory=dict)
    usage: MemoryUsage | None = None
    before: bytes = b""
    """The end of what was read before `block`."""
    block: bytes = b""
    number: int = 1
    """Of the line at `offset`."""
    offset: int = 0

    def take(self, block: bytes) -> None:
        """Read a block of whole lines: those with a telling word, and where messages go on."""
        self.before = (self.before + self.block)[-_CONTEXT_BYTES:]
        self.block, self.offset = block, 0
        for start in (*marked_lines(block), len(block)):
            while self.open_events and self.offset < start:
                self._read_line()
            if self.offset < start:
                self.number += block.count(b"\n", self.offset, start)
                self.offset = start
            if self.offset == start < len(block):
                self._read_line()

    def _read_line(self) -> None:
        end = self.block.find(b"\n", self.offset) + 1 or len(self.block)
        for part in self.block[self.offset : end].rstrip(b"\r\n").split(b"\r"):
            for begin in range(0, max(len(part), 1), _PIECE_BYTES):
                self._look(self.number, decoded(part[begin : begin + _PIECE_BYTES]))
        self.number += self.block.count(b"\n", self.offset, end)
        self.offset = end
        for stream, event in list(self.open_events.items()):
            if event.lines_left <= 0 or self.number - event.line > _MESSAGE_SPAN:
                del self.open_events[stream]

    def _look(self, number: int, text: str) -> None:
        stream, line = split_prefix(text)
        self._take_usage(number, line)
        message = find_message(line)
        if message is not None:
            self._begin(number, stream, line, message)
            return
        event = self.open_events.get(stream)
        if event is not None:
            event.goes_on_with(line)

    def _begin(self, number: int, stream: str, line: str, message: Message) -> None:
        frames = self._traceback(stream) if message.certain else []
        message = with_call(message, (*frames[-_CALL_LINES:], line))
        phase = find_phase(frames)
        event = _Event(
            message=message,
            stream=stream,
            rank=_rank(stream, line, message),
            line=number,
            phase=self._progress() if phase == "unknown" else phase,
            operation=find_operation(frames[-_OPERATION_LINES:]),
            recomputes=recomputes(frames),
            usage=self.usage,
        )
        self.events.append(event)
        self.open_events.pop(stream, None)
        if message.backend is not None and message.kind == "device":
            event.lines_left = _MESSAGE_LINES
            event.goes_on_with(line)
            self.open_events[stream] = event

    def _lines_above(self) -> Iterator[str]:
        """The lines over the current one, the nearest first, without what was overwritten."""
        text = (self.before + self.block[: self.offset])[-_CONTEXT_BYTES:]
        for line in reversed(text.removesuffix(b"\n").split(b"\n")):
            yield decoded(line.rstrip(b"\r").rpartition(b"\r")[2][:_LINE_BYTES])

    def _traceback(self, stream: str) -> list[str]:
        """The last lines of `stream` from the beginning of its last traceback on."""
        found: list[str] = []
        for text in self._lines_above():
            other, line = split_prefix(text)
            if other == stream:
                found.append(line)
                if begins_traceback(line) or len(found) == _TRACEBACK_LINES:
                    break
        return found[::-1]

    def _progress(self) -> Phase:
        """The phase by the last line of any process that tells of progress."""
        for line in self._lines_above():
            for phase, words in _PROGRESS:
                if words.search(line):
                    return phase
        return "unknown"

    def _take_usage(self, number: int, line: str) -> None:
        if found := USAGE_LABEL.search(line):
            self.usage = MemoryUsage(label=found[1].strip(), line=number)
        elif found := USAGE.search(line):
            sizes = {
                "allocated_bytes": round(float(found[1]) * GIB),
                "reserved_bytes": round(float(found[2]) * GIB),
            }
            self.usage = (self.usage or MemoryUsage(label="", line=number)).model_copy(update=sizes)
        elif found := USAGE_HOST.search(line):
            used, percent = float(found[1]), float(found[2])
            sizes = {"host_used_bytes": round(used * GIB)}
            if percent > 0:
                sizes["host_total_bytes"] = round(used * GIB / percent * 100)
            self.usage = (self.usage or MemoryUsage(label="", line=number)).model_copy(update=sizes)


def read_log(path: Path) -> OomReport:
    """The worst out-of-memory message of the log at `path`, and how many ranks said so.

    The file is read as a stream; bytes that are not UTF-8 are tolerated. Raises InputError when
    there is no such file or no such message in it.
    """
    reader, digest = _Reader(), hashlib.sha256()
    try:
        for block in _blocks(path, digest.update):
            reader.take(block)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not reader.events:
        raise InputError(
            f"{path} has no out-of-memory message",
            hint="looked for: 'out of memory' of CUDA, HIP, NPU and NCCL, DefaultCPUAllocator, "
            "CUBLAS_STATUS_ALLOC_FAILED, failed pinning, shared memory, the kernel's "
            "out-of-memory killer, and processes killed by signal 9; give the log with stderr of "
            "the rank that failed",
        )
    for event in reader.events:
        if event.text:
            event.message = read_sizes(event.message, event.text)
            event.rank = _rank(event.stream, "", event.message)
    return _report(path, digest.hexdigest(), reader.events)


def _blocks(path: Path, take_bytes: Callable[[bytes], None]) -> Iterator[bytes]:
    """The file in blocks that end with a line, unless the line is very long."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            if not block.endswith(b"\n"):
                block += file.readline(_BLOCK_BYTES)
            take_bytes(block)
            # NUL bytes: UTF-16 of a redirected PowerShell, or a crashed file system.
            yield block.replace(b"\0", b"")


def _rank(stream: str, line: str, message: Message) -> str:
    """A name for the process that said it."""
    if names_a_process(stream):
        return stream
    if message.kind == "host" and (found := _KILLED_PROCESS.search(line)):
        return f"{stream} process {found[1]}"
    return stream if message.device is None else f"{stream} GPU {message.device}"


def _compact(line: str) -> str:
    return _BOX.sub("", line)


def _report(path: Path, digest: str, events: list[_Event]) -> OomReport:
    worst = max(events, key=lambda event: event.severity)
    message = worst.message
    same = [
        event
        for event in events
        if event.message.kind == message.kind and event.message.certain == message.certain
    ]
    names = {event.rank for event in same if event.rank.strip()}
    outside = None
    if message.capacity_bytes and message.reserved_bytes is not None:
        in_use = message.capacity_bytes - (message.free_bytes or 0)
        outside = max(in_use - message.reserved_bytes, 0)
    return OomReport(
        log=str(path),
        log_sha256=digest,
        kind=message.kind,
        backend=message.backend,
        certain=message.certain,
        device=message.device,
        tried_bytes=message.tried_bytes,
        capacity_bytes=message.capacity_bytes,
        allowed_bytes=message.allowed_bytes,
        free_bytes=message.free_bytes,
        allocated_bytes=message.allocated_bytes,
        reserved_bytes=message.reserved_bytes,
        other_bytes=outside,
        other_process_bytes=message.other_process_bytes,
        ranks=max(len(names), 1),
        phase=worst.phase,
        operation="shared_memory" if message.shared_memory else worst.operation,
        recomputes=any(event.recomputes for event in islice(same, 64)),
        usage=worst.usage,
        line=worst.line,
    )
