from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from qdeploy.core.errors import InputError, ResourceError, UnknownNameError
from qdeploy.core.schema import validate
from qdeploy.train.arguments import Steps, check_supported, sft_config, steps_of
from qdeploy.train.dry_run import dry_run
from qdeploy.train.model import stored_dtype
from qdeploy.train.optimizers import optimizer_arguments
from qdeploy.train.peft_config import (
    check_adapters,
    compute_dtype,
    lora_config,
    quantization_config,
)
from qdeploy.train.recipe import Recipe


def recipe_of(fields: dict[str, Any], **changes: Any) -> Recipe:
    return validate(Recipe, {**fields, **changes}, "recipe")


@pytest.mark.parametrize("sequences", [4, 7, 8, 23])
@pytest.mark.parametrize("epochs", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("warmup", [0.0, 0.03, 0.5])
def test_steps(fields: dict[str, Any], sequences: int, epochs: float, warmup: float) -> None:
    recipe = recipe_of(fields, steps=None, epochs=epochs, schedule={"warmup": warmup})
    found = steps_of(recipe, sequences)
    whole = sum(1 for start in range(0, sequences, 4) if start + 4 <= sequences)
    assert found.epoch == whole
    assert found.total == max(1, math.ceil(whole * epochs))
    assert found.warmup == math.ceil(found.total * warmup)


def test_given_steps_win(fields: dict[str, Any]) -> None:
    assert steps_of(recipe_of(fields, steps=9), 4) == Steps(1, 9, 0)


def test_everything_reaches_the_trainer(fields: dict[str, Any]) -> None:
    recipe = recipe_of(
        fields,
        optimizer={
            "lr": 1e-3, "lr_for_batch": 2, "eps": 1e-7, "betas": [0.8, 0.95],
            "weight_decay": 0.1, "gradient_clipping": 0.5,
        },
        schedule={"kind": "cosine", "warmup": 0.5},
        seed=7,
        eval={"every_steps": 3, "share": 0.1},
        checkpointing={"enabled": True},
    )  # fmt: skip
    made = sft_config(recipe, Steps(4, 10, 5))
    assert made.learning_rate == 1e-3 * 4 / 2
    assert (made.adam_beta1, made.adam_beta2, made.adam_epsilon) == (0.8, 0.95, 1e-7)
    assert (made.weight_decay, made.max_grad_norm) == (0.1, 0.5)
    assert (made.max_steps, made.get_warmup_steps(10)) == (10, 5)
    assert made.lr_scheduler_type == "cosine"
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (2, 2)
    assert (made.seed, made.data_seed) == (7, 7)
    assert made.eval_strategy == "steps"
    assert made.eval_steps == 3
    assert made.activation_checkpointing
    assert made.activation_checkpointing_kwargs == {"use_reentrant": False}
    assert made.dataloader_drop_last
    assert not made.logging_nan_inf_filter


@pytest.mark.parametrize(
    ("precision", "strategy", "mixed", "stored"),
    [
        ("fp32", "none", False, torch.float32),
        ("bf16", "none", True, torch.float32),
        ("bf16-pure", "none", False, torch.bfloat16),
        ("bf16", "zero1", True, torch.bfloat16),
        ("fp32", "zero1", False, torch.float32),
    ],
)
def test_precision(
    fields: dict[str, Any], precision: str, strategy: str, mixed: bool, stored: torch.dtype
) -> None:
    recipe = recipe_of(fields, precision=precision, strategy={"name": strategy, "offload": "none"})
    assert stored_dtype(recipe) == stored
    if strategy == "none":
        assert sft_config(recipe, Steps(1, 1, 0)).bf16 == mixed
    assert compute_dtype(recipe) == (torch.float32 if precision == "fp32" else torch.bfloat16)


def test_frozen_weights_have_no_masters(fields: dict[str, Any]) -> None:
    recipe = recipe_of(fields, precision="bf16", peft={"kind": "lora", "rank": 4})
    assert stored_dtype(recipe) == torch.bfloat16


def test_optimizers(fields: dict[str, Any]) -> None:
    gpu = {**fields, "hardware": {"gpu": "A100-80GB"}}

    def named(name: str, **more: Any) -> dict[str, str]:
        return optimizer_arguments(recipe_of(gpu, optimizer={"name": name, **more}))

    assert named("adamw") == {"optim": "adamw_torch_fused"}
    assert named("adamw_foreach") == {"optim": "adamw_torch"}
    assert named("sgd") == {"optim": "sgd"}
    assert named("sgd_momentum") == {"optim": "sgd", "optim_args": "momentum=0.9"}
    assert named("adafactor") == {"optim": "adafactor"}
    with pytest.raises(UnknownNameError):
        named("muon")
    with pytest.raises(InputError, match="in_backward"):
        named("adamw", in_backward=True)
    cpu = recipe_of(fields, optimizer={"name": "adamw8bit"})
    with pytest.raises(InputError, match="needs a GPU"):
        optimizer_arguments(cpu)


def test_what_is_not_installed_is_named(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        return None

    for module in ("optimizers", "peft_config", "arguments"):
        monkeypatch.setattr(f"qdeploy.train.{module}.find_spec", absent)
    gpu = recipe_of(fields, hardware={"gpu": "A100-80GB"}, optimizer={"name": "adamw8bit"})
    with pytest.raises(ResourceError, match="bitsandbytes"):
        optimizer_arguments(gpu)
    with pytest.raises(ResourceError, match="bitsandbytes"):
        check_adapters(recipe_of(fields, peft={"kind": "qlora"}))
    with pytest.raises(ResourceError, match="wandb"):
        check_supported(recipe_of(fields, reporters=["wandb"]))


def test_adapters(fields: dict[str, Any]) -> None:
    assert lora_config(recipe_of(fields)) is None
    made = lora_config(recipe_of(fields, peft={"kind": "lora", "rank": 8, "dropout": 0.1}))
    assert made is not None
    assert (made.r, made.lora_alpha, made.lora_dropout) == (8, 16, 0.1)
    assert made.target_modules == "all-linear"
    named = lora_config(
        recipe_of(
            fields,
            peft={"kind": "lora", "targets": ["q_proj"], "alpha": 3, "train_embeddings": True},
        )
    )
    assert named is not None
    assert named.target_modules == {"q_proj"}
    assert named.lora_alpha == 3
    assert named.modules_to_save == ["embed_tokens", "lm_head"]
    with pytest.raises(InputError, match="planned, not trained"):
        check_adapters(recipe_of(fields, peft={"kind": "adapter"}))
    with pytest.raises(InputError, match=r"peft\.base"):
        check_adapters(recipe_of(fields, peft={"kind": "lora", "base": "int8"}))
    assert quantization_config(recipe_of(fields, peft={"kind": "lora"})) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "cut"}, "loss: cut"),
        ({"checkpointing": {"enabled": True, "recompute": "ops"}}, "recompute: ops"),
        ({"checkpointing": {"activation_offload": True}}, "activation_offload"),
        ({"attention": "flash"}, "attention: flash needs a GPU"),
        ({"hardware": {"gpu": "cpu", "gpus": 2}, "parallel": {"tensor": 2}}, "data-parallel"),
        ({"strategy": {"name": "fsdp1"}}, "older FSDP"),
    ],
)
def test_what_can_only_be_planned(
    fields: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_supported(recipe_of(fields, **changes))


def test_fp16_needs_a_gpu(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="FP16 training needs a GPU"):
        dry_run(recipe_of(fields, precision="fp16"))


def test_bf16_on_a_card_without_it(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"V100.*no BF16") as caught:
        dry_run(recipe_of(fields, hardware={"gpu": "V100-32GB"}, precision="bf16"))
    assert "fp16" in str(caught.value.hint)
