"""What PyTorch's CPU allocator gives out while something runs, from the profiler's events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def allocated(run: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that `run` leaves allocated while its result lives, and its peak."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    events: Any = profiler.profiler
    memory = [event for event in events.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(memory, key=lambda one: one.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    del result
    return now, peak
