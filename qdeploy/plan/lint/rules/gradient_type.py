"""data_types.grad_accum_dtype: gradients in FP32 cost twice those of the weights' type.

With BF16 and stage 1, DeepSpeed's BF16_Optimizer holds them whole on every GPU
(runtime/bf16_optimizer.py, fp32_groups_gradients_flat).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import Case, Finding, block

_FP32 = ("fp32", "float32", "float", "torch.float32")


def check(case: Case) -> Iterator[Finding]:
    """FP32 accumulation under 16-bit weights."""
    kind = block(case.config, "data_types").get("grad_accum_dtype")
    half = case.enabled("bf16") or case.enabled("bfloat16") or case.enabled("fp16")
    if kind not in _FP32 or not half:
        return
    whole = case.stage < 2
    count = case.trained.total if whole else case.job.divided(case.trained)
    yield Finding(
        severity="note",
        key="data_types.grad_accum_dtype",
        message=f"FP32 gradients, {'whole' if whole else 'sharded'}: {format_bytes(4 * count)} a "
        "GPU beside the 16-bit ones",
        cost_bytes=4 * count,
        advice="leave it out unless long accumulation loses small gradients",
    )
