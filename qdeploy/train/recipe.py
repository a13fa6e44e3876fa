"""A training recipe: everything that a run needs, in one YAML file.

Only `model`, `data` and `hardware` must be given. What is left out is chosen by the planner
(strategy, checkpointing) or has the default that is written here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from qdeploy.core.schema import Schema, read_yaml
from qdeploy.plan.hf_names import learning_rate
from qdeploy.plan.request import Attention, Base, GradientType, Offload, PrecisionName, Recompute

SCHEMA = "qdeploy.recipe/1"

_EPS = 1e-8
_EPS_FP16 = 1e-6
_DEEPSPEED_STRATEGIES = ("zero1", "zero2", "zero3")


class Data(Schema):
    """Training data and how it becomes tokens."""

    path: str
    """A file or folder that a reader of `qdeploy.calib` knows."""
    chat_template: str | None = None
    """A Jinja file; None: the tokenizer's own."""
    packing: bool = False
    """Fill each sequence up to `seq_len` with further samples."""
    seq_len: int = Field(default=2048, gt=0)
    """Tokens of a sequence; longer samples are cut."""
    assistant_only_loss: bool = True
    """The loss counts the assistant's tokens only."""


class Hardware(Schema):
    """What the recipe was planned for."""

    gpu: str
    """A name of the GPU table, or `cpu`."""
    gpus: int = Field(default=1, gt=0)
    """GPUs (with cpu: processes) of one node."""
    nodes: int = Field(default=1, gt=0)
    host_memory_gib: float | None = Field(default=None, gt=0)
    """Memory of one node; None: not judged."""


class Optimizer(Schema):
    """The optimizer and its settings."""

    name: str = "adamw"
    lr: float | None = Field(default=None, gt=0)
    """None: 1e-5 for all weights, 1e-4 for adapters."""
    lr_for_batch: int | None = Field(default=None, gt=0)
    """The global batch that `lr` is meant for: another batch gets a rate in proportion
    (arXiv 1706.02677, section 2.1). None: `lr` is taken as it is."""
    eps: float | None = Field(default=None, gt=0)
    """None: 1e-8, in FP16 1e-6 (1e-8 is zero there)."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    gradient_clipping: float = Field(default=1.0, ge=0)
    """Largest norm of the gradients; 0: not clipped."""
    in_backward: bool = False
    gradient_type: GradientType | None = None
    """Type in which DeepSpeed accumulates gradients; None: that of the weights."""


class Schedule(Schema):
    """The learning rate over the steps."""

    kind: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: float = Field(default=0.03, ge=0, lt=1)
    """Share of the steps over which the rate rises to its value."""


class Batch(Schema):
    """Sizes of a step."""

    micro_batch: int = Field(default=1, gt=0)
    """Sequences of one forward pass on one GPU."""
    accumulation_steps: int | None = Field(default=None, gt=0)
    """Micro-batches of one optimizer step; None: 8, unless `global_batch` is given."""
    global_batch: int | None = Field(default=None, gt=0)
    """Sequences of one optimizer step over all GPUs, instead of `accumulation_steps`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Batch:
        if self.accumulation_steps is not None and self.global_batch is not None:
            raise ValueError("give accumulation_steps or global_batch, not both")
        return self


class Checkpointing(Schema):
    """Activations that are computed again in the backward pass."""

    enabled: bool | None = None
    """None: the planner chooses."""
    recompute: Recompute = "block"
    activation_offload: bool = False


class Strategy(Schema):
    """How the states are spread over GPUs, host and NVMe."""

    name: str | None = None
    """none, ddp, zero1, zero2, zero3, fsdp ...; None: the planner chooses."""
    offload: Offload | None = None
    """None: the planner chooses."""
    deepspeed: str | dict[str, Any] = "auto"
    """auto: derived from the recipe. A mapping, or the path of a JSON file, is laid over the
    derived configuration, key by key."""
    nvme_path: str = "/local_nvme"


class PeftSettings(Schema):
    """Adapters instead of all weights."""

    kind: str
    """lora, qlora ..."""
    rank: int = Field(default=16, gt=0)
    alpha: int | None = Field(default=None, gt=0)
    """None: twice the rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[str, ...] = ()
    """Linears that get an adapter; empty: every linear of the blocks."""
    train_embeddings: bool = False
    base: Base | None = None
    """How frozen weights are stored; None: nf4-dq with qlora, else 16bit."""


class Parallel(Schema):
    """Degrees of model parallelism."""

    tensor: int = Field(default=1, gt=0)
    sequence: bool = True
    pipeline: int = Field(default=1, gt=0)
    context: int = Field(default=1, gt=0)
    expert: int = Field(default=1, gt=0)


class LossScaling(Schema):
    """Dynamic loss scaling of FP16."""

    initial: int = Field(default=65536, gt=0)
    """A power of two."""
    window: int = Field(default=1000, gt=0)
    """Steps without overflow after which the scale doubles."""
    minimum: int = Field(default=1, gt=0)

    @field_validator("initial")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two")
        return value


class Saving(Schema):
    """Checkpoints."""

    every_steps: int = Field(default=500, gt=0)
    keep: int = Field(default=2, gt=0)


class Evaluation(Schema):
    """Loss on data that is not trained on."""

    every_steps: int | None = Field(default=None, gt=0)
    """None: only at the end."""
    path: str | None = None
    share: float = Field(default=0.0, ge=0, lt=1)
    """Without `path`: the share of the training data that is kept for it."""


class Recipe(Schema):
    """One training run."""

    schema_id: Literal["qdeploy.recipe/1"] = Field(default="qdeploy.recipe/1", alias="schema")
    model: str
    """A folder in Hugging Face layout or a hub id."""
    data: Data
    hardware: Hardware
    out: str = "artifacts/train"
    """Folder of the trained model and its checkpoints."""
    epochs: float = Field(default=1.0, gt=0)
    steps: int | None = Field(default=None, gt=0)
    """Optimizer steps, instead of `epochs`."""
    seed: int = Field(default=42, ge=0)

    precision: PrecisionName = "bf16"
    loss_scaling: LossScaling = LossScaling()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batch = Batch()
    strategy: Strategy = Strategy()
    checkpointing: Checkpointing = Checkpointing()
    attention: Attention = "sdpa"
    loss: str | None = None
    """hf, liger, chunked ...; None: the trainer's own."""
    compile: bool = False
    peft: PeftSettings | None = None
    parallel: Parallel = Parallel()
    save: Saving = Saving()
    eval: Evaluation = Evaluation()
    qat: Literal["int8", "int4"] | None = None
    """Train with the rounding that `quantize` will do."""
    reporters: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()
    """Where the Trainer reports to beside the log; each must be installed."""

    @model_validator(mode="after")
    def _goes_together(self) -> Recipe:
        name = self.strategy.name
        if self.strategy.deepspeed != "auto" and name not in _DEEPSPEED_STRATEGIES:
            raise ValueError(
                "strategy.deepspeed is given, so strategy.name must be one of "
                f"{', '.join(_DEEPSPEED_STRATEGIES)}"
            )
        if self.precision == "fp16" and self.adam_eps < _EPS_FP16:
            raise ValueError(f"optimizer.eps must be at least {_EPS_FP16:g} in fp16")
        return self

    @property
    def world(self) -> int:
        """Processes of all nodes."""
        return self.hardware.gpus * self.hardware.nodes

    @property
    def data_parallel(self) -> int:
        """Micro-batches that are worked on at the same time."""
        parallel = self.parallel
        return self.world // (parallel.tensor * parallel.pipeline * parallel.context)

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of one optimizer step."""
        batch = self.batch
        if batch.global_batch is not None:
            return batch.global_batch // (batch.micro_batch * self.data_parallel)
        return 8 if batch.accumulation_steps is None else batch.accumulation_steps

    @property
    def global_batch(self) -> int:
        """Sequences of one optimizer step."""
        return self.batch.micro_batch * self.accumulation_steps * self.data_parallel

    @property
    def learning_rate(self) -> float:
        """The rate of this recipe's global batch, by the linear rule where a batch is given."""
        optimizer = self.optimizer
        kind = None if self.peft is None else self.peft.kind
        rate = learning_rate(kind) if optimizer.lr is None else optimizer.lr
        if optimizer.lr_for_batch is None:
            return rate
        return rate * self.global_batch / optimizer.lr_for_batch

    @property
    def adam_eps(self) -> float:
        """Adam's eps for the precision."""
        if self.optimizer.eps is not None:
            return self.optimizer.eps
        return _EPS_FP16 if self.precision == "fp16" else _EPS

    @property
    def lora_alpha(self) -> int:
        """Alpha of the adapters; 0 without."""
        if self.peft is None:
            return 0
        return 2 * self.peft.rank if self.peft.alpha is None else self.peft.alpha


def read_recipe(path: Path) -> Recipe:
    """The recipe at `path`.

    Raises InputError for a missing or malformed file, with the nearest name for an unknown key.
    """
    return read_yaml(path, Recipe)
