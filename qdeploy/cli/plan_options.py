"""The options of `qdeploy train-plan` as one value, and the request that they make."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qdeploy.cli.project import find_project, require
from qdeploy.core.errors import InputError
from qdeploy.core.units import GIB, MIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan import PlanRequest

_SIZES = {
    "hidden": "hidden_size", "layers": "layers", "heads": "heads", "kv_heads": "kv_heads",
    "intermediate": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip
# Options that a request takes in another form than the command line gives.
_OTHERWISE = {"model", "gpus", "micro_batch", "lora_targets", "ds_config"}


@dataclass(frozen=True)
class PlanOptions:
    """What was given on the command line; see `qdeploy train-plan --help`."""

    model: str | None
    gpus: str | None
    micro_batch: int | None
    global_batch: int | None
    accumulation_steps: int
    seq_len: int
    packing: bool
    precision: str
    optimizer: str
    gradient_type: str | None
    optimizer_in_backward: bool
    strategy: str | None
    offload: str | None
    checkpointing: bool | None
    recompute: str
    activation_offload: bool
    attention: str
    loss: str | None
    compile: bool
    trainer: str
    peft: str | None
    lora_rank: int
    lora_targets: str | None
    lora_dropout: bool
    train_embeddings: bool
    base: str | None
    tensor_parallel: int
    sequence_parallel: bool
    pipeline_parallel: int
    context_parallel: int
    expert_parallel: int
    params: str | None
    hidden: int | None
    layers: int | None
    heads: int | None
    kv_heads: int | None
    intermediate: int | None
    vocab: int | None
    nodes: int
    host_memory: float | None
    nvme: float | None
    disk: float | None
    context_mib: int | None
    occupied: float
    accounting: str | None
    basis: str
    out: Path | None
    json: bool
    recipe: Path | None
    recipe_out: Path | None
    data: str
    emit: str | None
    emit_out: Path | None
    frontier: bool
    frontier_out: Path | None
    ledger: bool
    ds_config: Path | None
    explain_oom: Path | None
    trace: bool

    @classmethod
    def names(cls) -> list[str]:
        """The names of all options."""
        return [field.name for field in fields(cls)]

    @property
    def names_a_run(self) -> bool:
        """A model and GPUs are given, here or in the project file."""
        project = find_project()
        model = self.model or self._sizes() or (project and project.model)
        return bool(model and (self.gpus or (project and project.train)))

    def request(self) -> tuple[PlanRequest, list[str]]:
        """The run that is asked for, and what is to be said about it.

        Raises InputError and UnknownNameError as PlanRequest and its parts do.
        """
        from qdeploy.plan.gpu import parse_mixed

        project = find_project()
        train = project.train if project else None
        model: str | ModelShape | None = self._sized_model() or self.model
        if model is None:
            model = require(project.model if project else None, "model", "MODEL")
        gpus = require(self.gpus or (train.gpus if train else None), "GPUs", "--gpus")
        count, warning = parse_mixed(gpus)
        same = set(self.names()) & {field.name for field in fields(PlanRequest)} - _OTHERWISE
        chosen: dict[str, Any] = {name: getattr(self, name) for name in same}
        micro_batch = self.micro_batch
        if micro_batch is None and self.global_batch is None:
            micro_batch = 1
        request = PlanRequest(
            model=model,
            gpu=count.name,
            gpus=count.count,
            micro_batch=micro_batch,
            lora_targets=tuple(_names(self.lora_targets)),
            host_memory_bytes=_gib(self.host_memory, "--host-memory"),
            nvme_bytes=_gib(self.nvme, "--nvme"),
            context_bytes=None if self.context_mib is None else self.context_mib * MIB,
            occupied_bytes=int(self.occupied * GIB),
            **chosen,
        )
        return request, [warning] if warning else []

    def disk_bytes(self) -> int | None:
        """Free disk space, where it was given."""
        return _gib(self.disk, "--disk")

    def _sizes(self) -> dict[str, int]:
        given = {field: getattr(self, option) for option, field in _SIZES.items()}
        return {field: value for field, value in given.items() if value is not None}

    def _sized_model(self) -> ModelShape | None:
        """The model that --params, --hidden, ... describe; None where none of them is given."""
        sizes = self._sizes()
        if self.params is None and not sizes:
            return None
        if self.model is not None:
            raise InputError(
                f"the model is given by name ({self.model}) and by its sizes",
                hint="leave out MODEL, or --params and the sizes",
            )
        from qdeploy.models.sized import Sizes, parse_parameters, shape_of_sizes

        parameters = None if self.params is None else parse_parameters(self.params)
        return shape_of_sizes(Sizes(parameters=parameters, **sizes), self.params or "by sizes")


def _gib(value: float | None, option: str) -> int | None:
    if value is None:
        return None
    if not 0 < value < float("inf"):
        raise InputError(f"{option} must be a positive number of GiB, found {value:g}")
    return int(value * GIB)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").replace("，", ",").split(",") if name.strip()]
