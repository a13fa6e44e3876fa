"""What a plan is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import ConfigDict

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.models.shape import ModelShape

PrecisionName = Literal["bf16", "fp16", "fp32", "bf16-pure"]
Offload = Literal["none", "optimizer", "all", "nvme"]
Attention = Literal["flash", "sdpa", "eager"]
Base = Literal["16bit", "nf4", "nf4-dq", "gptq-int4", "int8"]
Recompute = Literal["block", "attention", "ops"]
GradientType = Literal["fp32", "16bit"]
Basis = Literal["allocated", "reserved", "device"]
Unit = Literal["GiB", "GB"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": get_args(PrecisionName),
    "offload": get_args(Offload),
    "attention": get_args(Attention),
    "base": get_args(Base),
    "recompute": get_args(Recompute),
    "gradient_type": get_args(GradientType),
    "basis": get_args(Basis),
}
_MAY_BE_NONE = {"offload", "base", "gradient_type", "micro_batch", "global_batch"}
_POSITIVE = (
    "gpus", "nodes", "micro_batch", "global_batch", "seq_len", "lora_rank", "accumulation_steps",
    "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel",
)  # fmt: skip


@dataclass(frozen=True)
class PlanRequest:
    """One training run whose memory is asked for.

    Raises InputError for a size that is not positive and UnknownNameError for an unknown choice.
    Names of GPUs, models, optimizers, strategies, trainers, losses and accountings are looked up
    by `plan`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str | Path | ModelShape
    """A folder with config.json, a shipped name or hub id, a bare size (7B), or a shape."""
    gpu: str
    gpus: int = 1
    """GPUs of one node."""
    nodes: int = 1
    micro_batch: int | None = 1
    """Sequences of one forward pass on one GPU; None: chosen for `global_batch`."""
    seq_len: int = 2048
    global_batch: int | None = None
    """Sequences of one optimizer step over all GPUs; None: `accumulation_steps` decides."""
    accumulation_steps: int = 8
    """Micro-batches for each optimizer step, without `global_batch`."""

    precision: PrecisionName = "bf16"
    """bf16 and fp16: 16-bit compute with FP32 masters; bf16-pure: everything in BF16."""
    optimizer: str = "adamw"
    optimizer_in_backward: bool = False
    """Each weight is updated as soon as its gradient is there, which is then freed."""
    gradient_type: GradientType | None = None
    """Type in which DeepSpeed accumulates gradients; None: its default, the compute type."""
    strategy: str | None = None
    """None: all that the accounting knows and the GPU count allows."""
    offload: Offload | None = None
    """None: none, optimizer and all."""
    checkpointing: bool | None = None
    """Recompute in the backward pass; None: tried with and without."""
    recompute: Recompute = "block"
    """What checkpointing recomputes: whole blocks, attention only (arXiv 2205.05198, section 5),
    or all but matrix products and attention (torchtitan's selective op)."""
    activation_offload: bool = False
    """Kept activations move to the host until they are needed."""
    attention: Attention = "sdpa"
    packing: bool = False
    """Sequences are packed to `seq_len`: no padding mask."""
    compile: bool = False
    """torch.compile."""
    loss: str | None = None
    """hf, chunked, liger ...; None: the trainer's own."""
    trainer: str = "hf"
    """Whose model code runs: hf (transformers, TRL), torchtune, torchtitan, litgpt ..."""

    peft: str | None = None
    """lora, qlora ...; None: all weights are trained."""
    lora_rank: int = 16
    """Rank of the adapters."""
    lora_targets: tuple[str, ...] = ()
    """Linears that get an adapter (q_proj ...); empty: every linear of the blocks."""
    lora_dropout: bool = False
    train_embeddings: bool = False
    """Embedding and head are trained in full beside the adapters (modules_to_save)."""
    base: Base | None = None
    """How frozen weights are stored; None: nf4-dq with qlora, else 16bit."""

    tensor_parallel: int = 1
    sequence_parallel: bool = True
    """With tensor parallelism, split what lies between its regions too (arXiv 2205.05198)."""
    pipeline_parallel: int = 1
    """Stages of a 1F1B schedule."""
    context_parallel: int = 1
    expert_parallel: int = 1

    basis: Basis = "device"
    """allocated: tensors; reserved: with the allocator's slack; device: as nvidia-smi shows it."""
    accounting: str | None = None
    """None: torch for fsdp, else deepspeed."""
    ds_config: Mapping[str, Any] | None = None
    """A DeepSpeed configuration whose sizes are used instead of the recipe's."""
    context_bytes: int | None = None
    """CUDA context of an empty process, where it was measured; None: a usual one."""
    occupied_bytes: int = 0
    """What other processes hold on each GPU."""
    host_memory_bytes: int | None = None
    """Memory of one node; None: not judged."""
    nvme_bytes: int | None = None
    """NVMe space of one node; None: not judged."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, found {value!r}")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (value is None and name in _MAY_BE_NONE):
                raise UnknownNameError(name, str(value), choices)
        for name in ("host_memory_bytes", "nvme_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"{name} must be positive, found {value}")
        for name in ("context_bytes", "occupied_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"{name} must not be negative, found {getattr(self, name)}")
        self._check_degrees()

    @property
    def world(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * self.nodes

    @property
    def model_parallel(self) -> int:
        """GPUs that work on one micro-batch."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel(self) -> int:
        """Micro-batches that are worked on at the same time."""
        return self.world // self.model_parallel

    def _check_degrees(self) -> None:
        if self.world % self.model_parallel:
            raise InputError(
                f"{self.world} GPUs do not divide into groups of {self.model_parallel} (tensor "
                f"{self.tensor_parallel} x pipeline {self.pipeline_parallel} x context "
                f"{self.context_parallel})",
                hint="choose degrees whose product divides the number of GPUs",
            )
        ranks = self.data_parallel * self.context_parallel
        if ranks % self.expert_parallel:
            raise InputError(
                f"expert parallelism {self.expert_parallel} does not divide the {ranks} ranks "
                "that share a stage"
            )
        if self.seq_len % self.context_parallel:
            raise InputError(
                f"{self.seq_len} tokens do not divide by context parallelism "
                f"{self.context_parallel}"
            )
        self._check_batch()

    def _check_batch(self) -> None:
        if self.global_batch is None:
            if self.micro_batch is None:
                raise InputError(
                    "micro_batch is to be chosen, but for which batch?",
                    hint="give --global-batch, the sequences of one optimizer step",
                )
            return
        step = self.data_parallel * (self.micro_batch or 1)
        if self.global_batch % step:
            micro = f" with micro-batches of {self.micro_batch}" if self.micro_batch else ""
            raise InputError(
                f"a global batch of {self.global_batch} does not divide over "
                f"{self.data_parallel} data-parallel GPUs{micro}",
                hint=f"use a multiple of {step}",
            )
