"""NVMe: needs a path, and stage 3."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import ZERO, Case, Finding, block


def check(case: Case) -> Iterator[Finding]:
    """NVMe offload without a path or without stage 3, and a missing aio block."""
    found = [name for name in ("offload_optimizer", "offload_param") if case.device(name) == "nvme"]
    for name in found:
        if not block(case.zero, name).get("nvme_path"):
            yield Finding(
                severity="error",
                key=f"{ZERO}.{name}.nvme_path",
                message="device nvme without a path",
                advice="give the folder of a local NVMe drive",
            )
        if case.stage in (1, 2):
            yield Finding(
                severity="warning",
                key=f"{ZERO}.{name}.device",
                message=f"stage {case.stage} knows no NVMe: what is offloaded stays in host memory",
                advice="use stage 3, or device cpu",
            )
    if found and case.stage == 3 and "aio" not in case.config:
        yield Finding(
            severity="note",
            key="aio",
            message="DeepSpeed's defaults for asynchronous I/O read with a queue of 8",
            advice="measure the drive with ds_io and set block_size and queue_depth",
        )
