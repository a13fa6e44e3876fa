"""`plan.json`: memory of a training run by part, for every strategy, and the choice."""

from __future__ import annotations

from typing import ClassVar, Literal

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
    """Gradients held between micro-batches and their FP32 copy at the step."""
    optimizer_bytes: int
    activations_bytes: int
    """Saved for the backward pass; with checkpointing the block inputs, and one block's own
    activations as far as they exceed the logits (the two are never there together)."""
    logits_bytes: int
    """Logits and the chain of the loss."""
    buffers_bytes: int
    """Communication buckets, gathered weights, dequantization."""
    framework_bytes: int
    """Workspace; with `reserved` the allocator's slack; with `device` CUDA context and NCCL."""
    total_bytes: int
    """The sum of the parts."""
    low_bytes: int
    high_bytes: int
    """The interval that the measured peak is expected in."""


class Candidate(Schema):
    """One way to run the request."""

    strategy: str
    offload: str
    checkpointing: bool
    micro_batch: int
    fits: bool
    """The high end of the interval, on the device basis, is within the GPU's memory (article:
    the total is within the marketing number), and the host's memory suffices where given."""
    per_gpu: PerGpu
    host_bytes: int
    """Host memory of one node that the states take while training."""
    host_init_bytes: int
    """Host memory of one node at the start, when each process loads the model."""
    nvme_bytes: int
    """NVMe space of one node."""
    relative_step_time: float
    """Modelled time of a step, 1.0 for the fastest candidate, whether it fits or not."""
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
    suggestion: str | None
    """When nothing fits: the smallest change that would make it fit."""
    precision: Precision
    notes: list[str]
    """How the numbers are to be read."""
    warnings: list[str]
