"""`plan.json`: memory of a training run by part, for every strategy, and the choice."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema
from qdeploy.models.shape import ModelShape
from qdeploy.plan.gpu import Gpu
from qdeploy.plan.request import PlanRequest

PARTS = (
    "weights", "master_weights", "gradients", "optimizer",
    "activations", "logits", "buffers", "framework",
)  # fmt: skip
"""The parts of `PerGpu`, each a field NAME_bytes; they add up to `total_bytes`."""


class PerGpu(Schema):
    """Peak memory of one GPU in bytes, on the basis that was asked for."""

    weights_bytes: int
    """Weights that compute reads, resident on this GPU (frozen ones included)."""
    master_weights_bytes: int
    """FP32 weights that the optimizer updates."""
    gradients_bytes: int
    """Gradients that are there at the peak; at the step with the optimizer's copies."""
    optimizer_bytes: int
    activations_bytes: int
    """Kept for the backward pass; in it one block's own, and the gradients of activations."""
    logits_bytes: int
    """Logits and the chain of the loss."""
    buffers_bytes: int
    """Communication buckets, gathered weights, dequantization."""
    framework_bytes: int
    """Workspace; with `reserved` the allocator's slack; with `device` CUDA context and NCCL."""
    peak: Literal["loss", "backward", "end", "step"] = "loss"
    """The moment of a step that the parts are from, the one with the most memory: the loss, the
    beginning or the end of the backward pass, the optimizer's step."""
    total_bytes: int
    """The sum of the parts."""
    low_bytes: int
    high_bytes: int
    """The interval that the measured peak is expected in."""
    need_bytes: int
    """What must be free on the GPU for the run: what is allocated, at the high end, CUDA context
    and NCCL, and what fragmentation always costs. The allocator's slack is not in it."""


class Candidate(Schema):
    """One way to run the request."""

    strategy: str
    offload: str
    checkpointing: bool
    micro_batch: int
    fits: bool
    """`need_bytes` is within the GPU's memory (article: the total is within the marketing
    number), and the host's memory and NVMe suffice where they are given."""
    per_gpu: PerGpu
    host_bytes: int
    """Host memory of one node that the states take while training."""
    host_pinned_bytes: int = 0
    """The part of it that is pinned."""
    host_init_bytes: int
    """Host memory of one node at the start, when each process loads the model."""
    nvme_bytes: int
    """NVMe space of one node."""
    accumulation_steps: int = 1
    """Micro-batches of one optimizer step."""
    relative_step_time: float
    """Modelled time of an optimizer step, 1.0 for the fastest candidate, whether it fits or not."""
    reason: str


class Precision(Schema):
    """Number formats of the run."""

    dtype: Literal["bf16", "fp16", "fp32"]
    reason: str
    loss_scaling: Literal["none", "dynamic"]
    adam_eps: float


class PlannedModel(Schema):
    """The model and what of it is trained."""

    name: str
    parameters: int
    trainable_parameters: int
    shape: ModelShape


class Plan(Artifact):
    """Memory of a training run by part, for every strategy, and the choice."""

    SCHEMA: ClassVar[str] = "qdeploy.plan/1"

    model: PlannedModel
    request: PlanRequest
    accounting: str
    gpu: Gpu
    capacity_bytes: int
    """What a candidate's need is held against."""
    candidates: list[Candidate]
    chosen: Candidate | None
    """None when nothing fits."""
    second_best: Candidate | None = None
    """What to take if not `chosen`, and why."""
    suggestion: str | None
    """When nothing fits: the smallest change that would make it fit."""
    other_suggestions: list[str] = Field(default_factory=list)
    """Further changes, each of which would do too."""
    precision: Precision
    notes: list[str]
    """How the numbers are to be read."""
    warnings: list[str]
