"""A recipe as the arguments of TRL's SFTTrainer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdeploy.core.errors import InputError, ResourceError
from qdeploy.plan.layout import find_strategy
from qdeploy.train.optimizers import optimizer_arguments
from qdeploy.train.peft_config import check_adapters
from qdeploy.train.recipe import Recipe
from qdeploy.train.request import CPU, TRAINER_LOSS, ds_json_of

if TYPE_CHECKING:
    from trl.trainer.sft_config import SFTConfig

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints in `out`."""

_ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}


@dataclass(frozen=True)
class Steps:
    """Optimizer steps of a run."""

    epoch: int
    total: int
    warmup: int


def steps_of(recipe: Recipe, sequences: int) -> Steps:
    """The steps of `recipe` over `sequences` sequences; each has the whole global batch."""
    epoch = sequences // recipe.global_batch
    total = recipe.steps or max(1, math.ceil(recipe.epochs * epoch))
    return Steps(epoch, total, math.ceil(recipe.schedule.warmup * total))


def check_supported(recipe: Recipe) -> None:
    """Raise InputError for settings that can be planned but not trained by TRL's trainer, and
    ResourceError for what they need and is not installed.

    `recipe` has its strategy filled in, as `dry_run` does it.
    """
    optimizer_arguments(recipe)
    _check_reporters(recipe)
    check_adapters(recipe)
    parallel, strategy = recipe.parallel, find_strategy(str(recipe.strategy.name))
    if recipe.world != recipe.data_parallel or parallel.expert > 1:
        raise InputError(
            "recipes run data-parallel: tensor, pipeline, context and expert parallelism are "
            "only planned",
            hint="set the degrees of `parallel` to 1 and shard with zero3 or fsdp",
        )
    if recipe.loss not in (None, TRAINER_LOSS):
        raise InputError(
            f"loss: {recipe.loss}, but TRL's trainer computes the loss in tiles of the logits",
            hint=f"leave `loss` out, or plan with --loss {TRAINER_LOSS}",
        )
    if recipe.checkpointing.recompute != "block":
        raise InputError(
            f"checkpointing.recompute: {recipe.checkpointing.recompute}, but transformers' models "
            "recompute whole blocks",
            hint="use recompute: block",
        )
    if strategy.name == "fsdp1":
        raise InputError(
            "transformers has dropped PyTorch's older FSDP", hint="use strategy.name: fsdp"
        )
    if recipe.hardware.gpu == CPU:
        _check_cpu(recipe)


def sft_config(recipe: Recipe, steps: Steps) -> SFTConfig:
    """The arguments of SFTTrainer.

    `recipe` has its strategy filled in. Imports trl. Raises InputError for settings that do not go
    together.
    """
    from trl.trainer.sft_config import SFTConfig

    optimizer = recipe.optimizer
    settings: dict[str, Any] = {
        **optimizer_arguments(recipe),
        **_precision(recipe),
        **_sharding(recipe),
        **_recomputing(recipe),
        **_intervals(recipe),
        **_reporting(recipe),
    }
    return SFTConfig(
        output_dir=str(Path(recipe.out) / CHECKPOINTS),
        max_steps=steps.total,
        per_device_train_batch_size=recipe.batch.micro_batch,
        per_device_eval_batch_size=recipe.batch.micro_batch,
        gradient_accumulation_steps=recipe.accumulation_steps,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=_schedule(recipe, steps),
        warmup_steps=steps.warmup,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=recipe.adam_eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.gradient_clipping,
        seed=recipe.seed,
        data_seed=recipe.seed,
        use_cpu=recipe.hardware.gpu == CPU,
        torch_compile=recipe.compile,
        # Samples are tokens already, cut and packed.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=recipe.data.seq_len,
        packing=recipe.data.packing,
        dataloader_drop_last=True,
        dataloader_pin_memory=recipe.hardware.gpu != CPU,
        ddp_find_unused_parameters=False,
        **settings,
    )


def attention_name(recipe: Recipe) -> str:
    """`attn_implementation` of transformers."""
    return _ATTENTION[recipe.attention]


def uses_deepspeed(recipe: Recipe) -> bool:
    """Whether DeepSpeed holds the states."""
    return find_strategy(str(recipe.strategy.name)).engine == "deepspeed"


def _check_cpu(recipe: Recipe) -> None:
    if recipe.attention == "flash":
        raise InputError("attention: flash needs a GPU", hint="use attention: sdpa on CPUs")
    if recipe.checkpointing.activation_offload:
        raise InputError(
            "checkpointing.activation_offload moves activations from a GPU to the host; on CPUs "
            "they are there already",
            hint="set it to false",
        )


def _schedule(recipe: Recipe, steps: Steps) -> str:
    kind = recipe.schedule.kind
    return "constant_with_warmup" if kind == "constant" and steps.warmup else kind


def _precision(recipe: Recipe) -> dict[str, Any]:
    """Both are mixed precision; left out, TRL would switch BF16 on."""
    return {"bf16": recipe.precision == "bf16", "fp16": recipe.precision == "fp16"}


def _sharding(recipe: Recipe) -> dict[str, Any]:
    strategy = find_strategy(str(recipe.strategy.name))
    if strategy.engine == "deepspeed":
        return {"deepspeed": ds_json_of(recipe)}
    if strategy.engine == "torch":
        return {}
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": "weights" in strategy.shards,
            "cpu_offload": recipe.strategy.offload == "all",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
            "activation_checkpointing": bool(recipe.checkpointing.enabled),
        },
    }


def _recomputing(recipe: Recipe) -> dict[str, Any]:
    """FSDP recomputes by itself: around its own units, or weights would be gathered twice."""
    engine = find_strategy(str(recipe.strategy.name)).engine
    enabled = bool(recipe.checkpointing.enabled) and engine != "fsdp"
    # With adapters under ZeRO-3 only the reentrant form works (TRL sets it by itself).
    reentrant = recipe.peft is not None and recipe.strategy.name == "zero3"
    return {
        "activation_checkpointing": enabled,
        "activation_checkpointing_kwargs": {"use_reentrant": reentrant} if enabled else None,
        "activation_offloading": recipe.checkpointing.activation_offload,
    }


def _intervals(recipe: Recipe) -> dict[str, Any]:
    every = recipe.eval.every_steps
    return {
        "logging_steps": 1,
        # A loss that is not finite must be seen, not averaged away.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": recipe.save.every_steps,
        "save_total_limit": None,
        "eval_strategy": "no" if every is None else "steps",
        "eval_steps": every,
    }


def _check_reporters(recipe: Recipe) -> None:
    for name in recipe.reporters:
        if find_spec(name) is None:
            raise ResourceError(
                f"reporter {name} is not installed", hint=f"pip install {name}, or leave it out"
            )


def _reporting(recipe: Recipe) -> dict[str, Any]:
    return {
        "report_to": list(recipe.reporters) or "none",
        "run_name": Path(recipe.out).name,
        "disable_tqdm": True,
        "log_level": "error",
        "log_level_replica": "error",
    }
