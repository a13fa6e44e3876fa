"""Arguments of transformers' Trainer that several trainers share under the same names."""

from __future__ import annotations

from typing import Any

from qdeploy.plan.emit import Choice, refuse
from qdeploy.plan.hf_names import learning_rate, optimizer_arguments

LORA_ALPHA_FACTOR = 2
LORA_DROPOUT = 0.05
_EMBEDDINGS = ["embed_tokens", "lm_head"]


def batch_arguments(choice: Choice) -> dict[str, Any]:
    """Micro-batch and accumulation."""
    return {
        "per_device_train_batch_size": choice.job.micro_batch,
        "gradient_accumulation_steps": choice.job.accumulation,
    }


def optimizer_settings(choice: Choice) -> dict[str, Any]:
    """Optimizer, eps by precision, learning rate to start from, clipping."""
    return {
        **optimizer_arguments(choice.request.optimizer),
        "adam_epsilon": choice.job.precision.adam_eps,
        "learning_rate": learning_rate(choice.request.peft),
        "max_grad_norm": choice.gradient_clipping,
    }


def mixed_precision(choice: Choice) -> dict[str, bool]:
    """`bf16` and `fp16`: mixed precision, which pure BF16 and FP32 are not."""
    dtype = choice.job.precision.dtype
    return {"bf16": dtype == "bf16" and not choice.job.pure, "fp16": dtype == "fp16"}


def liger(choice: Choice, trainer: str) -> bool:
    """Whether Liger's fused loss is wanted. Raises InputError for a loss it has no setting for."""
    name = choice.request.loss or choice.job.traits.loss
    if name not in ("hf", "liger"):
        raise refuse(trainer, f"the loss {name}", "plan with --loss hf or liger")
    return name == "liger"


def lora_targets(choice: Choice) -> list[str]:
    """Linears that get an adapter; empty: all of the blocks."""
    return list(choice.request.lora_targets)


def trained_embeddings(choice: Choice, trainer: str) -> list[str]:
    """Modules trained in full beside the adapters."""
    if not choice.request.train_embeddings:
        return []
    if choice.job.shape.linear_names:
        raise refuse(
            trainer,
            f"trained embeddings of {choice.job.shape.family}, whose modules have other names than "
            "embed_tokens and lm_head",
            "plan without --train-embeddings",
        )
    return list(_EMBEDDINGS)


def check_peft(choice: Choice, trainer: str) -> str | None:
    """The method: lora, qlora or None. Raises InputError for another, or another base."""
    peft = choice.request.peft
    if peft not in (None, "lora", "qlora"):
        raise refuse(trainer, f"the method {peft}", "plan with --peft lora or qlora")
    if peft is not None and choice.job.base not in ("16bit", "nf4", "nf4-dq", "int8"):
        raise refuse(trainer, f"a base in {choice.job.base}", "plan with --base nf4-dq or 16bit")
    return peft


def no_activation_offload(choice: Choice, trainer: str) -> None:
    """Raise InputError where activations should move to the host."""
    if choice.request.activation_offload:
        raise refuse(trainer, "activation offload", "plan without --activation-offload")
