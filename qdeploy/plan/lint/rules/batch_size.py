"""train_batch_size = micro-batch x accumulation x data-parallel GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import Case, Finding

_WHOLE = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"


def check(case: Case) -> Iterator[Finding]:
    """Batch sizes that disagree with each other, with the GPUs, or with the plan."""
    whole, micro, steps = (case.config.get(key) for key in (_WHOLE, _MICRO, _STEPS))
    ranks = case.request.data_parallel
    for key, value in ((_WHOLE, whole), (_MICRO, micro), (_STEPS, steps)):
        if value not in (None, "auto") and (type(value) is not int or value < 1):
            yield Finding(
                severity="error", key=key, message=f"must be a whole number, found {value!r}"
            )
            return
    if whole is None and micro is None and case.request.trainer != "hf":
        yield Finding(
            severity="error",
            key=_MICRO,
            message=f"neither {_WHOLE} nor {_MICRO} is given: DeepSpeed stops",
            advice=f"give {_MICRO} and {_STEPS}",
        )
    if isinstance(whole, int) and isinstance(micro, int) and isinstance(steps, int):
        product = micro * steps * ranks
        if whole != product:
            yield Finding(
                severity="error",
                key=_WHOLE,
                message=f"{whole}, but {micro} x {steps} x {ranks} data-parallel GPUs are "
                f"{product}: DeepSpeed stops",
                advice=f"use {product}",
            )
    yield from _against_plan(case, micro, steps)


def _against_plan(case: Case, micro: object, steps: object) -> Iterator[Finding]:
    planned = {_MICRO: case.job.micro_batch, _STEPS: case.job.accumulation}
    for key, value in ((_MICRO, micro), (_STEPS, steps)):
        if isinstance(value, int) and value != planned[key]:
            yield Finding(
                severity="warning",
                key=key,
                message=f"{value}, the plan has {planned[key]}: its activations are for another run"
                if key == _MICRO
                else f"{value}, the plan has {planned[key]}",
                advice='make them equal, or write "auto"',
            )
