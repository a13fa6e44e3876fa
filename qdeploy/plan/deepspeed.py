"""The DeepSpeed configuration of a layout, with sizes in elements.

The terms read this very `zero_optimization`, so plan and run cannot drift apart. Defaults of
DeepSpeed that are kept are written out (deepspeed/runtime/zero/config.py). Optimizer and schedule
are left to the trainer: with optimizer offload accelerate puts DeepSpeed's CPU form in the place
of AdamW (accelerate/utils/deepspeed.py, map_pytorch_optim_to_deepspeed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout

# 100 MB of BF16: a tenth of DeepSpeed's default of 5e8, whose buckets alone take gigabytes and
# outweigh what ZeRO-2 saves below 1e9 parameters (deepspeed#1302). For the same reason never more
# than 1/32 of what is trained: with overlap_comm that comes to 28 % of the gradients at most.
_BUCKET_ELEMENTS = 50_000_000
_BUCKET_SHARE = 32
_LIVE_ELEMENTS = 1_000_000_000
_SUB_GROUP_ELEMENTS = 1_000_000_000

SIZES: dict[str, int] = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "sub_group_size": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
}
"""DeepSpeed's own defaults of the sizes, in elements (zero/config.py of 0.19)."""

STAGE_3_ONLY = frozenset(name for name in SIZES if name.startswith("stage3_")) | {"sub_group_size"}
"""Sizes that stages 1 and 2 do not read."""

_AIO = {
    "block_size": 1_048_576,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


@dataclass(frozen=True)
class LossScaling:
    """Dynamic loss scaling of FP16: DeepSpeed's defaults."""

    initial: int = 65536
    """A power of two."""
    window: int = 1000
    """Steps without overflow after which the scale doubles."""
    minimum: int = 1


@dataclass(frozen=True)
class DsSettings:
    """What the configuration says beside the plan."""

    gradient_clipping: float = 1.0
    loss_scaling: LossScaling = field(default_factory=LossScaling)
    nvme_path: str = "/local_nvme"


_DEFAULTS = DsSettings()


def ds_config(job: Job, layout: Layout, settings: DsSettings = _DEFAULTS) -> dict[str, Any]:
    """The whole DeepSpeed configuration of a ZeRO layout of `job`.

    Raises InputError for a layout that DeepSpeed has no part in, and for degrees of parallelism
    that its ZeRO does not know.
    """
    _check(job, layout)
    config: dict[str, Any] = {
        "train_batch_size": job.micro_batch * job.accumulation * job.world,
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "gradient_clipping": settings.gradient_clipping,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": _with_paths(zero_optimization(job, layout), settings.nvme_path),
        **_precision(job, settings.loss_scaling),
    }
    if job.request.gradient_type is not None:
        accumulated = "fp32" if job.request.gradient_type == "fp32" else job.precision.dtype
        config["data_types"] = {"grad_accum_dtype": accumulated}
    if layout.offload == "nvme":
        config["aio"] = dict(_AIO)
    return config


def zero_optimization(job: Job, layout: Layout) -> dict[str, Any]:
    """DeepSpeed's `zero_optimization` for a ZeRO layout of `job`.

    The sizes are those of `request.ds_config` where one is given, with DeepSpeed's defaults for
    what it leaves out. Stage and offload are always the layout's. Raises InputError for a size
    that is not a number.
    """
    stage = len(layout.strategy.shards)
    given = job.request.ds_config
    block: dict[str, Any] = {"stage": stage}
    block |= _recipe_sizes(job, stage) if given is None else _given_sizes(given, job, stage)
    own: Mapping[str, Any] = {} if given is None else given.get("zero_optimization") or {}
    device = "nvme" if layout.offload == "nvme" else "cpu"
    if layout.offload != "none":
        block["offload_optimizer"] = _offload(own, "offload_optimizer", device)
    if layout.offload in ("all", "nvme"):
        block["offload_param"] = _offload(own, "offload_param", device)
    return block


def element_count(name: str, value: Any, hidden_size: int) -> int:
    """What the size `name` becomes, in elements, with transformers and accelerate.

    They fill in three values for "auto" (transformers/integrations/deepspeed.py): the reduce
    bucket h^2, the prefetch bucket 0.9 h^2, the persistence threshold 10 h. Any other "auto" is
    dropped by DeepSpeed, which then takes its default (runtime/config_utils.py). Raises InputError
    for what is not a size.
    """
    if value == "auto":
        filled = {
            "reduce_bucket_size": hidden_size * hidden_size,
            "stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
            "stage3_param_persistence_threshold": 10 * hidden_size,
        }
        return filled.get(name, SIZES[name])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(
            f"zero_optimization.{name} must be a number of elements, found {value!r}",
            hint='write a number (5e8) or "auto"',
        )
    if value < 0 or value != int(value) or (value == 0 and name == "reduce_bucket_size"):
        raise InputError(f"zero_optimization.{name} must be a whole positive number, found {value}")
    return int(value)


def bucket_bytes(zero: Mapping[str, Any], trained: int, element: int) -> int:
    """What the buckets of stage 1 or 2 take, for `trained` parameters of `element` bytes.

    One reduce bucket; with overlap_comm up to 4.5 times both sizes, the rule of transformers'
    documentation (main_classes/deepspeed): with 5e8 elements 5e8 x 2 x 2 x 4.5 = 9 GB.
    """
    reduce = min(int(zero["reduce_bucket_size"]), trained) * element
    if not zero["overlap_comm"]:
        return reduce
    gather = min(int(zero["allgather_bucket_size"]), trained) * element
    return 9 * (reduce + gather) // 2


def given_size(zero: Mapping[str, Any], name: str) -> Any:
    """The size `name` of a user's `zero_optimization`; DeepSpeed's default where it has none.

    DeepSpeed takes names of stage 3 with and without their `stage3_`.
    """
    return zero.get(name, zero.get(name.removeprefix("stage3_"), SIZES[name]))


def _recipe_sizes(job: Job, stage: int) -> dict[str, Any]:
    if stage < 3:
        # DeepSpeed wants the allgather bucket to be even.
        bucket = 2 * max(1, min(_BUCKET_ELEMENTS, job.trainable // _BUCKET_SHARE) // 2)
        return {
            "overlap_comm": stage == 2,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "contiguous_gradients": stage == 2,
        }
    hidden = job.shape.hidden_size
    automatic = (
        "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    )  # fmt: skip
    return {
        "overlap_comm": True,
        **{name: element_count(name, "auto", hidden) for name in automatic},
        "stage3_max_live_parameters": _LIVE_ELEMENTS,
        "stage3_max_reuse_distance": _LIVE_ELEMENTS,
        "sub_group_size": _SUB_GROUP_ELEMENTS,
        # Else the trainer saves shards that no other program reads.
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _given_sizes(given: Mapping[str, Any], job: Job, stage: int) -> dict[str, Any]:
    zero = given.get("zero_optimization") or {}
    if not isinstance(zero, Mapping):
        raise InputError(f"zero_optimization must be an object, found {zero!r}")
    names = [name for name in SIZES if stage == 3 or name not in STAGE_3_ONLY]
    hidden = job.shape.hidden_size
    sizes: dict[str, Any] = {
        name: element_count(name, given_size(zero, name), hidden) for name in names
    }
    overlap = zero.get("overlap_comm")
    sizes["overlap_comm"] = bool(overlap) if overlap in (True, False) else stage == 3
    contiguous = zero.get("contiguous_gradients")
    sizes["contiguous_gradients"] = contiguous is not False
    return sizes


def _offload(zero: Mapping[str, Any], name: str, device: str) -> dict[str, Any]:
    given = zero.get(name)
    kept = {} if not isinstance(given, Mapping) else {k: v for k, v in given.items() if v != "auto"}
    return {"pin_memory": True, **kept, "device": device}


def _with_paths(zero: dict[str, Any], nvme_path: str) -> dict[str, Any]:
    """`zero` with a path in each block that is offloaded to NVMe."""
    for name in ("offload_optimizer", "offload_param"):
        if zero.get(name, {}).get("device") == "nvme":
            zero[name] = {"nvme_path": nvme_path, **zero[name]}
    return zero


def _precision(job: Job, scaling: LossScaling) -> dict[str, Any]:
    if job.precision.dtype == "bf16":
        return {"bf16": {"enabled": True}}
    if job.precision.dtype == "fp32":
        return {}
    return {
        "fp16": {
            "enabled": True,
            "loss_scale": 0,
            "initial_scale_power": scaling.initial.bit_length() - 1,
            "loss_scale_window": scaling.window,
            "hysteresis": 2,
            "min_loss_scale": scaling.minimum,
        }
    }


def _check(job: Job, layout: Layout) -> None:
    if layout.strategy.engine != "deepspeed":
        raise InputError(
            f"{layout.strategy.name} runs without DeepSpeed, so it has no DeepSpeed configuration",
            hint="choose zero1, zero2 or zero3",
        )
    request = job.request
    if request.model_parallel > 1 or request.expert_parallel > 1:
        raise InputError(
            "DeepSpeed's ZeRO shards over data-parallel GPUs: tensor, pipeline, context and expert "
            "parallelism have no place in its configuration",
            hint="plan with degrees of 1 to get one",
        )
