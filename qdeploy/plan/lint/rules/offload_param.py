"""offload_param is stage 3's."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import ZERO, Case, Finding

_KEY = f"{ZERO}.offload_param"


def check(case: Case) -> Iterator[Finding]:
    """Offloaded weights without stage 3, and what they take on the host."""
    if case.device("offload_param") == "none":
        return
    if case.stage != 3:
        yield Finding(
            severity="error",
            key=_KEY,
            message=f"valid only with stage 3, this is stage {case.stage}: the weights stay on the "
            "GPU",
            advice="use stage 3, or take it out",
        )
        return
    job = case.job
    host = -(-job.compute_bytes * (job.trainable + job.frozen) // case.request.nodes)
    yield Finding(
        severity="note",
        key=_KEY,
        message=f"the weights of a node lie on its host: {format_bytes(host)}; each pass brings "
        "them up twice",
        cost_bytes=host,
    )
