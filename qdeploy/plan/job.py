"""A request with its names looked up: the facts that the terms compute from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from qdeploy.core.artifacts import sha256_file, sha256_text
from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.schema import Schema, validate
from qdeploy.core.toml import read_toml
from qdeploy.models.family import shape_of
from qdeploy.models.shape import ModelShape
from qdeploy.models.shipped_shapes import KnownShape, shipped_shape, shipped_shape_names
from qdeploy.models.source import read_config
from qdeploy.plan.adapters import adapter_parameters
from qdeploy.plan.gpu import Gpu, find_gpu
from qdeploy.plan.precision import choose_precision
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.schema import Precision

_OPTIMIZERS = "qdeploy.plan.optimizers"


class Optimizer(Schema):
    """What an optimizer keeps for each parameter; `optimizers/NAME.toml` is called NAME."""

    name: str
    states: int = Field(ge=0)
    bits: int = Field(gt=0)
    """Bits of a state; 32-bit states follow the parameters' type when all is BF16."""
    block_size: int = Field(ge=0)
    """States that share one FP32 scale; 0: no scales."""
    paged: bool
    """States lie in unified memory and may spill to the host."""
    cpu_offload: bool
    """DeepSpeed has a CPU form of it, which optimizer offload needs."""
    source: str


@dataclass(frozen=True)
class Job:
    """One training run: sizes, GPU, optimizer and number formats."""

    request: PlanRequest
    shape: ModelShape
    parameters: int
    gpu: Gpu
    optimizer: Optimizer
    precision: Precision
    inputs: dict[str, str]
    """Input -> sha256 of what it was read from."""

    @property
    def world(self) -> int:
        """GPUs of all nodes."""
        return self.request.gpus * self.request.nodes

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one GPU."""
        return self.request.micro_batch * self.request.seq_len

    @property
    def trainable(self) -> int:
        """Parameters that are updated."""
        if self.request.peft is None:
            return self.parameters
        return adapter_parameters(self.shape, self.request.lora_rank)

    @property
    def frozen(self) -> int:
        """Parameters that are only read."""
        return 0 if self.request.peft is None else self.parameters

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the forward and backward pass."""
        return 4 if self.precision.dtype == "fp32" else 2

    @property
    def pure(self) -> bool:
        """All in BF16: no FP32 masters, gradients and states."""
        return self.request.precision == "bf16-pure"


def make_job(request: PlanRequest) -> Job:
    """Look up everything that `request` names.

    Raises InputError or UnknownNameError for what is not there or does not go together.
    """
    known = _find_model(request.model)
    gpu, gpu_digest = find_gpu(request.gpu)
    if request.attention == "flash" and gpu.compute_capability < (8, 0):
        raise InputError(
            f"flash attention needs compute capability 8.0, {gpu.name} has "
            f"{'.'.join(map(str, gpu.compute_capability))}",
            hint="use --attention sdpa",
        )
    return Job(
        request=request,
        shape=known.shape,
        parameters=known.parameters,
        gpu=gpu,
        optimizer=find_optimizer(request.optimizer),
        precision=choose_precision(request.precision, gpu),
        inputs={"model": known.digest, "gpu": gpu_digest},
    )


def find_optimizer(name: str) -> Optimizer:
    """The optimizer called `name`. Raises UnknownNameError."""
    choices = plugin_names(_OPTIMIZERS, ".toml")
    if name not in choices:
        raise UnknownNameError("optimizer", name, choices)
    data, _ = read_toml(_OPTIMIZERS, name)
    return validate(Optimizer, {"name": name, **data}, f"optimizers/{name}.toml")


def _find_model(model: str | Path | ModelShape) -> KnownShape:
    if isinstance(model, ModelShape):
        return KnownShape(model, model.parameters, sha256_text(model.model_dump_json()))
    folder = Path(model).expanduser()
    if folder.is_dir():
        shape = shape_of(read_config(folder), folder.resolve().name)
        return KnownShape(shape, shape.parameters, sha256_file(folder / "config.json"))
    known = shipped_shape(str(model))
    if known is None:
        raise UnknownNameError(
            "model (no such folder, no shipped shape)", str(model), shipped_shape_names()
        )
    return known
