"""Keys that only stage 3 reads."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import ZERO, Case, Finding

_MORE = ("sub_group_size", "memory_efficient_linear", "zero_hpz_partition_size")
_BELOW_3 = ("allgather_bucket_size", "allgather_partitions", "round_robin_gradients")


def check(case: Case) -> Iterator[Finding]:
    """Keys that the stage does not read."""
    if case.stage == 3:
        ignored = [name for name in case.zero if name in _BELOW_3]
        others = "1 and 2"
    else:
        ignored = [name for name in case.zero if name.startswith("stage3_") or name in _MORE]
        others = "3"
    for name in ignored:
        yield Finding(
            severity="note",
            key=f"{ZERO}.{name}",
            message=f"read by stage {others} only: no effect in stage {case.stage}",
            advice="take it out",
        )
