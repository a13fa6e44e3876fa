"""A request with its names looked up: the facts that the terms compute from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
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
from qdeploy.plan.gpu import Gpu, find_gpu
from qdeploy.plan.losses import Loss, find_loss
from qdeploy.plan.peft import Peft, find_peft
from qdeploy.plan.precision import choose_precision
from qdeploy.plan.rank import Count, Rank, Stage
from qdeploy.plan.request import Base, PlanRequest
from qdeploy.plan.schema import Precision
from qdeploy.plan.trainers import Trainer, Traits, find_trainer

_OPTIMIZERS = "qdeploy.plan.optimizers"


class Optimizer(Schema):
    """What an optimizer keeps for each parameter; `optimizers/NAME.toml` is called NAME."""

    name: str
    states: int = Field(ge=0)
    bits: int = Field(gt=0)
    """Bits of a state; 32-bit states follow the parameters' type when all is BF16."""
    matrix_states: int | None = None
    """States of a weight of a matrix, where they differ (Muon: one momentum)."""
    factored: bool = False
    """A matrix has one row and one column of state instead of a number for each weight."""
    step_copies: int = Field(default=0, ge=0)
    """Copies of the trained weights, in the states' type, that live while the optimizer steps."""
    step_tensors: int = Field(default=0, ge=0)
    """Copies of the largest weight, in FP32, that live while the optimizer steps."""
    follows_parameters: bool = True
    """States have the parameters' type when all is BF16 (torch); False: always `bits`."""
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
    """Of the whole model."""
    gpu: Gpu
    optimizer: Optimizer
    precision: Precision
    trainer: Trainer
    loss: Loss
    peft: Peft | None
    inputs: dict[str, str]
    """Input -> sha256 of what it was read from."""
    stage: Stage = "only"
    """The stage of the pipeline that is looked at."""

    @property
    def world(self) -> int:
        """GPUs of all nodes."""
        return self.request.world

    @property
    def traits(self) -> Traits:
        """How the trainer holds numbers."""
        return self.trainer.TRAITS

    @property
    def micro_batch(self) -> int:
        """Sequences of one forward pass."""
        return self.request.micro_batch or 1

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one GPU."""
        return self.micro_batch * self.request.seq_len // self.request.context_parallel

    @property
    def accumulation(self) -> int:
        """Micro-batches of one optimizer step."""
        request = self.request
        if request.global_batch is None:
            return request.accumulation_steps
        return request.global_batch // (request.data_parallel * self.micro_batch)

    @cached_property
    def rank(self) -> Rank:
        """The part of the model on one GPU."""
        request = self.request
        return Rank(
            self.shape,
            tensor=request.tensor_parallel,
            pipeline=request.pipeline_parallel,
            expert=request.expert_parallel,
            stage=self.stage,
            surplus=self.parameters - self.shape.parameters,
        )

    @cached_property
    def held(self) -> Count:
        """Parameters on one GPU before data-parallel sharding."""
        return self.rank.parameters

    @cached_property
    def held_trained(self) -> Count:
        """Of those, the ones that are trained; adapters are on top of `held`."""
        return self.held if self.peft is None else self._adapters(self.rank)

    @property
    def held_frozen(self) -> Count:
        """Of those, the ones that are only read."""
        if self.peft is None:
            return Count(0)
        if not self.request.train_embeddings:
            return self.held
        return self.held.plus(Count(-self.rank.embedding - self.rank.head))

    @property
    def trainable(self) -> int:
        """Trained parameters of the whole model."""
        return self.parameters if self.peft is None else self._adapters(Rank(self.shape)).total

    @property
    def frozen(self) -> int:
        """Parameters of the whole model that are only read."""
        if self.peft is None:
            return 0
        trained = self.shape.embedding_parameters + self.shape.head_parameters
        return self.parameters - (trained if self.request.train_embeddings else 0)

    @property
    def head_trained(self) -> bool:
        """The head's weight gets a gradient."""
        return self.peft is None or self.request.train_embeddings

    @property
    def base(self) -> Base:
        """How frozen weights are stored."""
        return self.request.base or (self.peft.BASE if self.peft else "16bit")

    @property
    def upcasts_base(self) -> bool:
        """What is not quantized of a quantized base is held in FP32."""
        return self.base != "16bit" and self.traits.upcasts_base

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the forward and backward pass."""
        return 4 if self.precision.dtype == "fp32" else 2

    @property
    def adapter_bytes(self) -> int:
        """Bytes of an adapter's weight and gradient."""
        return max(self.traits.adapter_bytes, self.compute_bytes)

    @property
    def pure(self) -> bool:
        """All in BF16: no FP32 masters, gradients and states."""
        return self.request.precision == "bf16-pure"

    @property
    def without_activation_offload(self) -> Job:
        """The same run with all activations on the GPU."""
        return replace(self, request=replace(self.request, activation_offload=False))

    def divided(self, count: Count) -> int:
        """How much of `count` one GPU holds where it is sharded over the data-parallel ranks.

        Context-parallel ranks share the weights and are sharded over too; experts only over the
        ranks that hold the same ones.
        """
        request = self.request
        ranks = request.data_parallel * request.context_parallel
        experts = max(1, ranks // request.expert_parallel)
        return -(-count.dense // ranks) + -(-count.experts // experts)

    def _adapters(self, rank: Rank) -> Count:
        peft, request = self.peft, self.request
        if peft is None:
            return Count(0)
        total = Count(peft.outside_parameters(self.shape))
        for moe, blocks in rank.kinds:
            adapters = peft.block_parameters(
                self.shape, request.lora_rank, request.lora_targets, moe=moe
            )
            total = total.plus(adapters.times(blocks))
        if request.train_embeddings:
            total = total.plus(Count(rank.embedding + rank.head))
        return total


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
    trainer = find_trainer(request.trainer)
    _check_parallel(request, known.shape)
    _check_trainer(request, trainer)
    return Job(
        request=request,
        shape=known.shape,
        parameters=known.parameters,
        gpu=gpu,
        optimizer=find_optimizer(request.optimizer),
        precision=choose_precision(request.precision, gpu),
        trainer=trainer,
        loss=find_loss(request.loss or _own_loss(request, trainer)),
        peft=None if request.peft is None else find_peft(request.peft),
        inputs={"model": known.digest, "gpu": gpu_digest},
    )


def _check_trainer(request: PlanRequest, trainer: Trainer) -> None:
    recomputes = trainer.TRAITS.recomputes
    if request.recompute not in recomputes:
        raise InputError(
            f"trainer {request.trainer} cannot recompute {request.recompute}",
            hint=f"choose {' or '.join(recomputes)}",
        )


def _check_parallel(request: PlanRequest, shape: ModelShape) -> None:
    tensor = request.tensor_parallel
    if shape.heads % tensor:
        raise InputError(
            f"{shape.heads} attention heads of {shape.name} do not divide by tensor parallelism "
            f"{tensor}"
        )
    if request.pipeline_parallel > shape.layers:
        raise InputError(
            f"{request.pipeline_parallel} pipeline stages for the {shape.layers} layers of "
            f"{shape.name}"
        )
    if request.expert_parallel > 1 and (
        not shape.experts or shape.experts % request.expert_parallel
    ):
        raise InputError(
            f"{shape.experts} experts of {shape.name} do not divide by expert parallelism "
            f"{request.expert_parallel}"
        )
    if request.train_embeddings and request.peft is None:
        raise InputError(
            "train_embeddings is for adapters: without --peft everything is trained anyway"
        )


def _own_loss(request: PlanRequest, trainer: Trainer) -> str:
    traits = trainer.TRAITS
    parallel = traits.parallel_loss if request.tensor_parallel > 1 else None
    return parallel or traits.loss


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
