"""fp16, bf16 and torch_autocast: which of them, and whether the GPU has it."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import Case, Finding, block


def check(case: Case) -> Iterator[Finding]:
    """Contradictions between the three blocks, the GPU and the plan."""
    bf16, fp16 = case.enabled("bf16") or case.enabled("bfloat16"), case.enabled("fp16")
    gpu = case.job.gpu
    if bf16 and fp16:
        yield Finding(
            severity="error",
            key="fp16.enabled",
            message="bf16 and fp16 are both on: DeepSpeed stops",
            advice=f"keep {'bf16' if gpu.has_bf16 else 'fp16'}: {gpu.name} "
            f"{'has' if gpu.has_bf16 else 'has no'} BF16",
        )
    elif bf16 and not gpu.has_bf16:
        yield Finding(
            severity="error",
            key="bf16.enabled",
            message=f"{gpu.name} has no BF16 (compute capability "
            f"{'.'.join(map(str, gpu.compute_capability))}, 8.0 is needed): it is emulated, slowly",
            advice='use "fp16": {"enabled": true, "loss_scale": 0} and Adam eps 1e-6',
        )
    elif fp16 and gpu.has_bf16:
        yield Finding(
            severity="note",
            key="fp16.enabled",
            message=f"{gpu.name} has BF16, which needs no loss scaling and skips no steps",
            advice="use bf16",
        )
    if not bf16 and not fp16:
        yield from _full_precision(case)
    if fp16 and block(case.config, "fp16").get("loss_scale", 0) not in (0, "auto"):
        yield Finding(
            severity="warning",
            key="fp16.loss_scale",
            message="a fixed loss scale: one overflow and the step is lost or the weights are NaN",
            advice="use 0, dynamic loss scaling",
        )


def _full_precision(case: Case) -> Iterator[Finding]:
    either = [block(case.config, name).get("enabled") for name in ("bf16", "bfloat16", "fp16")]
    if "auto" in either or case.request.precision == "fp32" or case.enabled("torch_autocast"):
        return
    extra = 2 * (case.job.divided(case.job.held) if case.stage == 3 else case.job.held.total)
    yield Finding(
        severity="warning",
        key="bf16.enabled",
        message=f"neither bf16 nor fp16 is on: weights and gradients are FP32, weights alone "
        f"{format_bytes(extra)} more a GPU",
        cost_bytes=extra,
        advice=f"turn {'bf16' if case.job.gpu.has_bf16 else 'fp16'} on",
    )
