"""The run that a DeepSpeed configuration describes, as far as it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qdeploy.plan.lint.case import Case, block, make_case
from qdeploy.plan.request import Offload, PlanRequest

_FP32 = ("fp32", "float32", "float", "torch.float32")


def request_with(config: Mapping[str, Any], request: PlanRequest) -> PlanRequest:
    """`request` with stage, offload, precision and batch of `config`, and its sizes.

    What `config` leaves out, or leaves to `auto`, stays as `request` has it. Raises InputError for
    a stage that there is not.
    """
    case = make_case(config, request)
    sizes: dict[str, Any] = {}
    micro = config.get("train_micro_batch_size_per_gpu")
    if isinstance(micro, int) and micro > 0:
        sizes["micro_batch"] = micro
    steps = config.get("gradient_accumulation_steps")
    if isinstance(steps, int) and steps > 0 and request.global_batch is None:
        sizes["accumulation_steps"] = steps
    kind = block(config, "data_types").get("grad_accum_dtype")
    return replace(
        request,
        ds_config=config,
        strategy=_strategy(case),
        offload=_offload(case),
        precision=_precision(case),
        gradient_type="fp32" if kind in _FP32 else request.gradient_type,
        **sizes,
    )


def _strategy(case: Case) -> str:
    if case.stage:
        return f"zero{case.stage}"
    return "none" if case.request.world == 1 else "ddp"


def _offload(case: Case) -> Offload:
    return case.layout.offload if case.stage else "none"


def _precision(case: Case) -> Any:
    if case.enabled("bf16") or case.enabled("bfloat16"):
        return "bf16"
    if case.enabled("fp16"):
        return "fp16"
    either = [block(case.config, name).get("enabled") for name in ("bf16", "bfloat16", "fp16")]
    return case.request.precision if "auto" in either else "fp32"
