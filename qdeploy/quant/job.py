"""What is to be done, worked out from headers and the config alone, and every reason not to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from qdeploy.calib.batches import CalibrationSet
from qdeploy.core.artifacts import refuse_existing
from qdeploy.core.errors import InputError
from qdeploy.core.plugins import load_plugin
from qdeploy.core.scheme import Scheme
from qdeploy.models.checkpoint import Checkpoint, open_checkpoint
from qdeploy.models.family import Family, family_of, shape_of
from qdeploy.models.shape import ModelShape
from qdeploy.models.source import read_config
from qdeploy.quant.manifest import SkippedLayer

FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class Job:
    """A model, a scheme, and what follows from the two."""

    folder: Path
    config: dict[str, Any]
    checkpoint: Checkpoint
    family: Family
    shape: ModelShape
    scheme: Scheme
    format: ModuleType
    algorithms: list[ModuleType]
    skipped: list[SkippedLayer]

    def block_name(self, index: int) -> str:
        """Path of block `index`: 'model.layers.3'."""
        return f"{self.family.blocks}.{index}"

    def linears(self, index: int) -> list[str]:
        """Linears of block `index` to quantize, named inside the block, in running order."""
        block = self.block_name(index)
        return [n for n in self.family.linears if not self.scheme.ignores(f"{block}.{n}")]

    def all_linears(self) -> list[str]:
        """Full names of all linears to quantize."""
        return [
            f"{self.block_name(index)}.{linear}"
            for index in range(self.shape.layers)
            for linear in self.linears(index)
        ]


def plan_job(folder: Path, scheme: Scheme, out: Path, calibration: CalibrationSet) -> Job:
    """The job. Raises InputError that lists everything that stands against it."""
    refuse_existing(out)
    config = read_config(folder)
    checkpoint = open_checkpoint(folder)
    job = Job(
        folder=folder,
        config=config,
        checkpoint=checkpoint,
        family=family_of(config),
        shape=shape_of(config, folder.name),
        scheme=scheme,
        format=load_plugin("qdeploy.formats", scheme.format, "format"),
        algorithms=[
            load_plugin("qdeploy.quant.algorithms", name, "algorithm") for name in scheme.algorithms
        ],
        skipped=_skipped(scheme, family_of(config), shape_of(config, folder.name), checkpoint),
    )
    checks: list[Callable[[], list[str]]] = [
        lambda: _place_problems(job, out),
        lambda: _scheme_problems(job),
        lambda: _model_problems(job),
        lambda: _tensor_problems(job),
        lambda: _calibration_problems(job, calibration),
    ]
    # Raises for what the format cannot say, before anything else is looked at.
    job.format.quantization_config(scheme.weights, scheme.activations, [])
    problems = [problem for check in checks for problem in check()]
    if problems:
        raise InputError("; ".join(problems))
    return job


def _skipped(
    scheme: Scheme, family: Family, shape: ModelShape, checkpoint: Checkpoint
) -> list[SkippedLayer]:
    names = [f"{family.blocks}.{i}.{n}" for i in range(shape.layers) for n in family.linears]
    skipped = [SkippedLayer(name=n, reason="ignored by the scheme") for n in names]
    skipped = [layer for layer in skipped if scheme.ignores(layer.name)]
    tied = "lm_head.weight" not in checkpoint.tensors
    reason = "shares its weight with the embedding" if tied else "output heads stay as they are"
    return [*skipped, SkippedLayer(name="lm_head", reason=reason)]


def _place_problems(job: Job, out: Path) -> list[str]:
    if out.resolve().is_relative_to(job.folder.resolve()):
        return [f"the output folder {out} lies inside the model folder {job.folder}"]
    return []


def _scheme_problems(job: Job) -> list[str]:
    if job.scheme.activations is not None:
        return []
    return [
        f"{name} needs quantized activations, which the scheme {job.scheme.name} has not"
        for name, algorithm in zip(job.scheme.algorithms, job.algorithms, strict=True)
        if algorithm.NEEDS_QUANTIZED_ACTIVATIONS
    ]


def _model_problems(job: Job) -> list[str]:
    problems = []
    found = job.config.get("quantization_config")
    if found:
        method = found.get("quant_method") if isinstance(found, dict) else found
        problems.append(f"{job.folder} is quantized already ({method}): give the original model")
    if job.shape.experts or not job.shape.causal:
        kind = "a mixture of experts" if job.shape.experts else "an encoder"
        problems.append(f"{job.folder} is {kind}: only dense decoder models can be quantized")
    if job.family.transposed and not job.format.HOLDS_CONV1D:
        problems.append(
            f"the linear layers of {job.shape.family} are Conv1D modules, which no reader of "
            f"{job.scheme.format} loads as integers"
        )
    for pair in job.family.pairs:
        for index in range(job.shape.layers):
            kept = set(pair.linears) & set(job.linears(index))
            if kept and kept != set(pair.linears):
                problems.append(
                    f"the scheme ignores only a part of {', '.join(pair.linears)} of "
                    f"{job.block_name(index)}, which servers fuse into one layer"
                )
    return problems


def _tensor_problems(job: Job) -> list[str]:
    problems = []
    tensors = job.checkpoint.tensors
    for name in job.all_linears():
        info = tensors.get(f"{name}.weight")
        if info is None:
            problems.append(f"{name}.weight is missing from the weight files")
        elif info.dtype not in FLOATS or len(info.shape) != 2:
            problems.append(
                f"{name}.weight is {info.dtype} {list(info.shape)}, "
                f"expected a matrix in {', '.join(FLOATS)}"
            )
    more = len(problems) - 3
    if problems:
        return [*problems[:3], f"and {more} more"] if more > 0 else problems
    columns = 0 if job.family.transposed else 1
    undivided = job.scheme.weights.undivided(
        {name: tensors[f"{name}.weight"].shape[columns] for name in job.all_linears()}
    )
    return [undivided] if undivided else []


def _calibration_problems(job: Job, calibration: CalibrationSet) -> list[str]:
    if calibration.tokens == 0:
        return ["the calibration set has no tokens"]
    problems = []
    largest = max(int(batch.input_ids.max()) for batch in calibration.batches)
    if largest >= job.shape.vocab_size:
        problems.append(
            f"the tokenizer gives id {largest}, the model knows {job.shape.vocab_size} tokens: "
            "they do not belong together"
        )
    longest = max(batch.input_ids.shape[1] for batch in calibration.batches)
    if longest > job.shape.max_positions:
        problems.append(
            f"calibration sequences have up to {longest} tokens, "
            f"the model takes {job.shape.max_positions}"
        )
    return problems


def free_disk_bytes(out: Path) -> int:
    """Free bytes where `out` will lie."""
    place = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    return shutil.disk_usage(place).free
