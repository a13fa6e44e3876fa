"""The adapters of a recipe as PEFT and bitsandbytes take them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from qdeploy.core.errors import InputError, ResourceError
from qdeploy.train.recipe import PeftSettings, Recipe

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig

_KINDS = ("lora", "qlora")
_BASES = ("16bit", "nf4", "nf4-dq")


def check_adapters(recipe: Recipe) -> None:
    """Raise InputError for adapters that cannot be trained, ResourceError without bitsandbytes."""
    peft = recipe.peft
    if peft is None:
        return
    if peft.kind not in _KINDS:
        raise InputError(
            f"peft.kind {peft.kind} can be planned, not trained", hint="use lora or qlora"
        )
    base = _base(peft)
    if base not in _BASES:
        raise InputError(
            f"peft.base {base} can be planned, not trained", hint="use nf4-dq, nf4 or 16bit"
        )
    if base != "16bit" and find_spec("bitsandbytes") is None:
        raise ResourceError(
            "QLoRA needs bitsandbytes, which is not installed",
            hint="pip install 'qdeploy[train]', or use peft.kind: lora",
        )


def lora_config(recipe: Recipe) -> LoraConfig | None:
    """PEFT's configuration; None where all weights are trained."""
    peft = recipe.peft
    if peft is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=peft.rank,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=peft.dropout,
        bias="none",
        target_modules=list(peft.targets) or "all-linear",
        modules_to_save=["embed_tokens", "lm_head"] if peft.train_embeddings else None,
    )


def quantization_config(recipe: Recipe) -> BitsAndBytesConfig | None:
    """How bitsandbytes stores the frozen base; None where it stays in 16 bits."""
    base = "16bit" if recipe.peft is None else _base(recipe.peft)
    if base == "16bit":
        return None
    from transformers import BitsAndBytesConfig

    compute = compute_dtype(recipe)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=base == "nf4-dq",
        bnb_4bit_compute_dtype=compute,
        # FSDP and ZeRO-3 shard tensors of one floating type only.
        **({"bnb_4bit_quant_storage": compute} if _sharded(recipe) else {}),
    )


def compute_dtype(recipe: Recipe) -> Any:
    """The torch type of matrix products."""
    import torch

    types = {"bf16": torch.bfloat16, "bf16-pure": torch.bfloat16, "fp16": torch.float16}
    return types.get(recipe.precision, torch.float32)


def _base(peft: PeftSettings) -> str:
    return peft.base or ("nf4-dq" if peft.kind == "qlora" else "16bit")


def _sharded(recipe: Recipe) -> bool:
    return recipe.strategy.name in ("zero3", "fsdp", "fsdp-grad-op")
