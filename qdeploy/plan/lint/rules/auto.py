""" "auto": filled in by transformers and accelerate, and only where they know the key.

transformers/integrations/deepspeed.py fills in batch sizes, clipping, precision, optimizer and
scheduler parameters, and three sizes. Inside its blocks DeepSpeed drops any other "auto" and takes
its default; at the top level it cannot compute with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qdeploy.core.units import format_bytes
from qdeploy.plan.deepspeed import SIZES
from qdeploy.plan.lint.case import ZERO, Case, Finding

_FILLED = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "fp16.enabled", "bf16.enabled", "optimizer.params.lr",
    "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay",
    "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
    "scheduler.params.total_num_steps", "scheduler.params.warmup_num_steps",
    f"{ZERO}.reduce_bucket_size", f"{ZERO}.stage3_prefetch_bucket_size",
    f"{ZERO}.stage3_param_persistence_threshold",
    # accelerate fills these in (utils/deepspeed.py, utils/dataclasses.py).
    f"{ZERO}.stage", f"{ZERO}.offload_optimizer.device", f"{ZERO}.offload_param.device",
    f"{ZERO}.offload_optimizer.nvme_path", f"{ZERO}.offload_param.nvme_path",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
}  # fmt: skip


def check(case: Case) -> Iterator[Finding]:
    """Every "auto" that nobody fills in, and one note on those that are."""
    automatic = list(_autos("", case.config))
    for path in automatic:
        if path not in _FILLED:
            yield _unfilled(case, path)
    filled = [path for path in automatic if path in _FILLED]
    if filled:
        yield Finding(
            severity="note" if case.request.trainer == "hf" else "error",
            key=filled[0],
            message='"auto" is filled in by transformers and accelerate, not by DeepSpeed itself: '
            + ", ".join(filled),
            advice=None if case.request.trainer == "hf" else "write the values",
        )


def _unfilled(case: Case, path: str) -> Finding:
    name = path.rsplit(".", 1)[-1]
    if path.startswith(f"{ZERO}.") and name in SIZES:
        default = SIZES[name]
        in_bytes = case.job.compute_bytes * default
        return Finding(
            severity="warning",
            key=path,
            message=f'nobody fills in this "auto": DeepSpeed takes its default of {default:,} '
            f"elements ({format_bytes(in_bytes)} if they are weights)",
            advice="write the number",
        )
    return Finding(
        severity="warning" if "." in path else "error",
        key=path,
        message='neither transformers nor accelerate fills in this "auto"',
        advice="write the value or take the key out",
    )


def _autos(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _autos(f"{path}.{name}" if path else str(name), inner)
    elif value == "auto":
        yield path
