"""offload_optimizer: needs a stage, and an optimizer with a CPU form."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import ZERO, Case, Finding
from qdeploy.plan.terms.optimizer import states_bytes

_KEY = f"{ZERO}.offload_optimizer"
# DeepSpeed's own factor for buffers and pinning (docs, memory.rst).
_BUFFERS = 1.5


def check(case: Case) -> Iterator[Finding]:
    """Offload that cannot be, and what it takes on the host."""
    if case.device("offload_optimizer") == "none":
        return
    if not case.stage:
        yield Finding(
            severity="error",
            key=_KEY,
            message="without a stage there is no ZeRO: nothing is offloaded",
            advice="use stage 2 or 3",
        )
        return
    optimizer = case.job.optimizer
    if not optimizer.cpu_offload:
        yield Finding(
            severity="error",
            key=_KEY,
            message=f"{optimizer.name} has no CPU form in DeepSpeed"
            + (": 8-bit states live on the GPU only" if optimizer.bits == 8 else ""),
            advice="use adamw (it becomes DeepSpeedCPUAdam), or no offload",
        )
    nodes = case.request.nodes
    states = states_bytes(case.job, case.layout, case.job.trainable)
    host = -(-(8 * case.job.trainable + states) // nodes)
    limit = case.request.host_memory_bytes
    too_much = limit is not None and host * _BUFFERS > limit
    yield Finding(
        severity="error" if too_much else "note",
        key=_KEY,
        message=f"FP32 weights, gradients and optimizer states of a node lie on its host: "
        f"{format_bytes(host)}, and half of it again for buffers"
        + (f"; the host has {format_bytes(limit)}" if too_much and limit else ""),
        cost_bytes=host,
        advice="use more nodes or NVMe" if too_much else None,
    )
