"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import ConfigDict

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.models.shape import ModelShape

PrecisionName = Literal["bf16", "fp16", "fp32", "bf16-pure"]
Offload = Literal["none", "optimizer", "all", "nvme"]
Attention = Literal["flash", "sdpa", "eager"]
Peft = Literal["lora", "qlora"]
Loss = Literal["hf", "chunked", "liger"]
Basis = Literal["allocated", "reserved", "device"]
Unit = Literal["GiB", "GB"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": get_args(PrecisionName),
    "offload": get_args(Offload),
    "attention": get_args(Attention),
    "peft": get_args(Peft),
    "loss": get_args(Loss),
    "basis": get_args(Basis),
}
_MAY_BE_NONE = {"offload", "peft"}
_POSITIVE = ("gpus", "nodes", "micro_batch", "seq_len", "lora_rank", "accumulation_steps")


@dataclass(frozen=True)
class PlanRequest:
    """One training run whose memory is asked for.

    Raises InputError for a size that is not positive and UnknownNameError for an unknown choice.
    Names of GPUs, models, optimizers, strategies and accountings are looked up by `plan`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str | Path | ModelShape
    """A folder with config.json, a shipped name or hub id, a bare size (7B), or a shape."""
    gpu: str
    gpus: int = 1
    """GPUs of one node."""
    nodes: int = 1
    micro_batch: int = 1
    """Sequences of one forward pass on one GPU."""
    seq_len: int = 2048
    precision: PrecisionName = "bf16"
    """bf16 and fp16: 16-bit compute with FP32 masters; bf16-pure: everything in BF16."""
    optimizer: str = "adamw"
    strategy: str | None = None
    """None: all that the accounting knows and the GPU count allows."""
    offload: Offload | None = None
    """None: none, optimizer and all."""
    checkpointing: bool | None = None
    """Recompute each block in the backward pass; None: both ways."""
    attention: Attention = "sdpa"
    peft: Peft | None = None
    lora_rank: int = 16
    """Rank of the adapters on every linear layer of the blocks."""
    loss: Loss = "hf"
    """hf: logits of all tokens; chunked: in 8 chunks; liger: Liger's fused linear cross-entropy."""
    basis: Basis = "device"
    """allocated: tensors; reserved: with the allocator's slack; device: as nvidia-smi shows it."""
    accounting: str | None = None
    """None: torch for fsdp, else deepspeed."""
    accumulation_steps: int = 8
    """Micro-batches for each optimizer step; only the relative step time depends on it."""
    host_memory_bytes: int | None = None
    """Memory of one node; None: not judged."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, found {value!r}")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (value is None and name in _MAY_BE_NONE):
                raise UnknownNameError(name, str(value), choices)
        if self.host_memory_bytes is not None and self.host_memory_bytes <= 0:
            raise InputError(f"host_memory_bytes must be positive, found {self.host_memory_bytes}")
