"""An explanation as lines for a person."""

from __future__ import annotations

from qdeploy.core.units import format_bytes
from qdeploy.plan.oom.schema import Explanation, OomReport

_KINDS = {
    "device": "out of GPU memory",
    "host": "out of host memory",
    "pinned": "out of pinned host memory",
    "nccl": "NCCL out of GPU memory",
    "cublas": "a CUDA library out of GPU memory",
}


def render_explanation(explanation: Explanation) -> list[str]:
    """Where and what, the numbers of the message, the explanation, the smallest change."""
    report = explanation.report
    return [
        _heading(report),
        *_numbers(report),
        *explanation.sentences,
        f"the smallest change: {explanation.change}.",
    ]


def _heading(report: OomReport) -> str:
    kind = _KINDS[report.kind]
    if not report.certain:
        kind = "killed by signal 9"
    gpu = "" if report.device is None else f" on GPU {report.device}"
    phase = "" if report.phase == "unknown" else f", phase {report.phase}"
    ranks = f", the worst of {report.ranks} ranks" if report.ranks > 1 else ""
    return f"{report.log}:{report.line}: {kind}{gpu}{phase}{ranks}"


def _numbers(report: OomReport) -> list[str]:
    free = None if report.free_bytes is None else f"free {format_bytes(report.free_bytes)}"
    if free is not None and report.capacity_bytes is not None:
        free += f" of {format_bytes(report.capacity_bytes)}"
    sizes = (
        ("in tensors", report.allocated_bytes),
        ("held without a tensor", report.unallocated_bytes),
        ("outside PyTorch's allocator", report.other_bytes),
    )
    tried = None if report.tried_bytes is None else f"tried {format_bytes(report.tried_bytes)}"
    held = [f"{name} {format_bytes(count)}" for name, count in sizes if count is not None]
    known = [text for text in (tried, free, *held) if text is not None]
    return [", ".join(known)] if known else []
