"""stage3_gather_16bit_weights_on_model_save: whole weights at saving, and the memory for them."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import ZERO, Case, Finding

_KEY = "stage3_gather_16bit_weights_on_model_save"


def check(case: Case) -> Iterator[Finding]:
    """What saving takes, or that it saves shards only."""
    if case.stage != 3 or case.request.peft is not None:
        return
    given = case.zero.get(_KEY, case.zero.get(_KEY.removeprefix("stage3_"), False))
    whole = case.job.compute_bytes * case.job.parameters
    if given is True:
        yield Finding(
            severity="note",
            key=f"{ZERO}.{_KEY}",
            message=f"saving collects {format_bytes(whole)} of weights on the host of rank 0",
            cost_bytes=whole,
        )
    elif given is False:
        yield Finding(
            severity="warning",
            key=f"{ZERO}.{_KEY}",
            message="saving the model writes shards only: zero_to_fp32.py must join them, with "
            f"{format_bytes(4 * case.job.parameters)} of FP32 weights in host memory",
            advice="set it to true",
        )
