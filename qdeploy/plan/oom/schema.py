"""What an out-of-memory message says, and what it means."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema
from qdeploy.plan.schema import PerGpu

Kind = Literal["device", "host", "pinned", "nccl", "cublas"]
Phase = Literal["load", "forward", "backward", "step", "save", "evaluate", "unknown"]
Operation = Literal[
    "logits", "eager_attention", "attention", "mlp", "norm", "gather", "reduce", "dequantize",
    "optimizer_states", "master_weights", "gradient_copy", "upcast", "shared_memory",
]  # fmt: skip
Part = Literal[
    "weights", "master_weights", "gradients", "optimizer", "activations", "logits", "buffers",
    "framework",
]  # fmt: skip
Cause = (
    Part
    | Literal[
        "fragmentation", "limit", "other_processes", "host", "shared_memory", "pinned", "unknown"
    ]
)  # fmt: skip


class MemoryUsage(Schema):
    """What DeepSpeed's `see_memory_usage` last printed before the message, in bytes."""

    label: str
    allocated_bytes: int | None = None
    """MA: tensors on the GPU."""
    reserved_bytes: int | None = None
    """CA: what PyTorch's allocator held."""
    host_used_bytes: int | None = None
    host_total_bytes: int | None = None
    """Used divided by percent, so known to one part in a few hundred."""
    line: int


class OomReport(Schema):
    """The worst out-of-memory message of a log. None: the message doesn't say."""

    log: str
    log_sha256: str
    kind: Kind
    backend: str | None = None
    """The allocator that spoke: CUDA, HIP, NPU, XPU."""
    certain: bool = True
    """False for a bare SIGKILL, which the kernel's out-of-memory killer is the usual cause of."""
    device: int | None = None
    tried_bytes: int | None = None
    """What the allocator asked the device or the host for, after its rounding."""
    capacity_bytes: int | None = None
    allowed_bytes: int | None = None
    """The limit of torch.cuda.set_per_process_memory_fraction."""
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """Held by tensors of this process (of the killed process, for a kernel message)."""
    reserved_bytes: int | None = None
    """Held by PyTorch's allocator: tensors and what it keeps for later ones."""
    other_bytes: int | None = None
    """In use outside PyTorch's allocator: CUDA context, NCCL, other processes."""
    other_process_bytes: int | None = None
    """In use by other processes alone."""
    ranks: int = Field(ge=1)
    """How many processes said so, as far as the log tells them apart."""
    phase: Phase
    operation: Operation | None = None
    """What the innermost recognizable frame of the traceback computed."""
    recomputes: bool = False
    """The traceback goes through activation checkpointing."""
    usage: MemoryUsage | None = None
    line: int = Field(ge=1)

    @property
    def unallocated_bytes(self) -> int | None:
        """Held by PyTorch's allocator and by no tensor."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(self.reserved_bytes - self.allocated_bytes, 0)


class Explanation(Artifact):
    """Which part of memory was too large, and the smallest change."""

    SCHEMA: ClassVar[str] = "qdeploy.oom/1"

    report: OomReport
    cause: Cause
    """The part that asked for the memory, or what kept it away."""
    tensor: str | None = None
    """The known tensor of the planned model that has the size that was tried."""
    layout: str | None = None
    """The layout of the plan that the log was held against."""
    per_gpu: PerGpu | None = None
    """That layout's memory by part."""
    largest_part: Part | None = None
    """The largest part of it."""
    sentences: list[str]
    """What happened, which part it was, and how the plan sees it."""
    change: str
    """The smallest change."""
