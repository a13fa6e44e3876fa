"""Physical memory of this process: the peak since it was last asked to forget it.

Linux keeps the peak itself (VmHWM in /proc/self/status; `ru_maxrss` is the same number) and forgets
it when a 5 is written to /proc/self/clear_refs (proc_pid_clear_refs(5)). Where that is not allowed,
in some containers, a thread looks at the current size instead and misses what is shorter than the
time between two looks.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import psutil

from qdeploy.core.units import KIB
from qdeploy.train.callbacks.events import Method

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_LOOK_SECONDS = 0.02


class Resident(Protocol):
    """Peak physical memory of this process."""

    METHOD: Method

    def peak_bytes(self) -> int:
        """The peak since the last `forget`."""

    def forget(self) -> None:
        """Begin a new peak at the present size."""


class KernelPeak:
    """The peak that the kernel keeps: nothing is missed."""

    METHOD: Method = "kernel"

    def peak_bytes(self) -> int:
        """VmHWM."""
        text = _STATUS.read_bytes()
        start = text.index(b"VmHWM:") + len(b"VmHWM:")
        return int(text[start : text.index(b"kB", start)]) * KIB

    def forget(self) -> None:
        """Let the kernel begin again. Raises OSError where that is not allowed."""
        _CLEAR.write_bytes(b"5")


class SampledPeak:
    """The largest size that a thread has seen."""

    METHOD: Method = "sampled"

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._most = self._process.memory_info().rss
        threading.Thread(target=self._look, name="resident-memory", daemon=True).start()

    def peak_bytes(self) -> int:
        """The largest size seen, the present one included."""
        self._most = max(self._most, self._process.memory_info().rss)
        return self._most

    def forget(self) -> None:
        """Begin again at the present size."""
        self._most = self._process.memory_info().rss

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            self._most = max(self._most, self._process.memory_info().rss)


def resident() -> Resident:
    """The kernel's peak where it can be reset, else a sampled one."""
    kernel = KernelPeak()
    try:
        kernel.forget()
        kernel.peak_bytes()
    except (OSError, ValueError):
        return SampledPeak()
    return kernel


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def given_out_bytes() -> int | None:
    """What the C library's allocator has given out now; None where it does not say.

    glibc 2.33 and later (mallinfo(3)): blocks of the heaps and blocks that were mapped.
    """
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return None
    info = mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


@cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo2
    return function
