"""torch_autocast beside bf16 or fp16: two ways of mixed precision at once."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """Autocast together with 16-bit weights, and what FP32 weights under autocast cost."""
    if not case.enabled("torch_autocast"):
        return
    if case.enabled("bf16") or case.enabled("bfloat16") or case.enabled("fp16"):
        yield Finding(
            severity="warning",
            key="torch_autocast.enabled",
            message="the weights are 16-bit already: autocast only casts norms and losses up and "
            "back",
            advice="keep one of the two",
        )
    else:
        weights = case.job.divided(case.job.held) if case.stage == 3 else case.job.held.total
        yield Finding(
            severity="note",
            key="torch_autocast.enabled",
            message=f"weights and gradients stay FP32: {format_bytes(4 * weights)} of weights a "
            "GPU, twice those of bf16",
            cost_bytes=2 * weights,
        )
    if case.zero.get("zero_quantized_weights") is True:
        yield Finding(
            severity="error",
            key="zero_optimization.zero_quantized_weights",
            message="DeepSpeed refuses it together with torch_autocast",
            advice="take one of the two out",
        )
