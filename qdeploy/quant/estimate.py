"""Disk and memory that a job takes, worked out before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from qdeploy.calib.batches import CalibrationSet
from qdeploy.core.errors import ResourceError
from qdeploy.core.units import GIB, MIB, format_bytes
from qdeploy.models.checkpoint import DTYPE_BYTES
from qdeploy.quant.job import Job, free_disk_bytes

_F32 = 4
# Imported libraries, the allocator's slack.
_BASE_BYTES = GIB
# Tokenizer, config and manifest beside the weights.
_SIDE_FILES_BYTES = 64 * MIB
# A block in float32: as read, as simulated integers, one linear in work.
_BLOCK_COPIES = 3


@dataclass(frozen=True)
class Estimate:
    """Bytes that a job needs."""

    disk_bytes: int
    memory_bytes: int


def estimate(job: Job, calibration: CalibrationSet, sample_tokens: int) -> Estimate:
    """What `job` needs with `calibration`, errors measured on `sample_tokens` tokens."""
    return Estimate(
        disk_bytes=_weights_bytes(job) + _SIDE_FILES_BYTES,
        memory_bytes=_BASE_BYTES + max(_capture_bytes(job), _block_bytes(job, sample_tokens))
        + _stream_bytes(job, calibration),
    )  # fmt: skip


def _weights_bytes(job: Job) -> int:
    total = job.checkpoint.size_bytes
    for name in job.all_linears():
        info = job.checkpoint.tensors[f"{name}.weight"]
        stored = job.format.stored_bytes(job.scheme.weights, info.shape, DTYPE_BYTES[info.dtype])
        total += stored - info.size_bytes
    return total


def _capture_bytes(job: Job) -> int:
    return job.shape.embedding_parameters * _F32


def _block_bytes(job: Job, sample_tokens: int) -> int:
    shape = job.shape
    widest = max(shape.intermediate_size, shape.heads * shape.head_dim, shape.hidden_size)
    inputs = 3 * shape.hidden_size + widest
    # Inputs kept for all linears; then one input scaled, rounded, and two outputs in a search.
    return _F32 * (_BLOCK_COPIES * shape.block_parameters + sample_tokens * (inputs + 4 * widest))


def _stream_bytes(job: Job, calibration: CalibrationSet) -> int:
    """Hidden states and masks of all batches, and the activations of the largest."""
    shape = job.shape
    sizes = [(batch.input_ids.shape[0], batch.input_ids.shape[1]) for batch in calibration.batches]
    kept = sum(
        B * T * shape.hidden_size * _F32 + 2 * B * T * T + 4 * T * shape.head_dim * _F32
        for B, T in sizes
    )
    running = max(
        B * T * _F32 * (4 * shape.hidden_size + 4 * shape.intermediate_size)
        + B * T * T * shape.heads * _F32
        for B, T in sizes
    )
    return kept + running


def refuse_too_large(needed: Estimate, out: Path) -> None:
    """Raise ResourceError when the disk of `out` or the memory is too small for `needed`."""
    problems = []
    free = free_disk_bytes(out)
    if needed.disk_bytes > free:
        problems.append(
            f"the output needs {format_bytes(needed.disk_bytes)} of disk, "
            f"{format_bytes(free)} are free"
        )
    available = psutil.virtual_memory().available
    if needed.memory_bytes > available:
        problems.append(
            f"the run needs about {format_bytes(needed.memory_bytes)} of memory, "
            f"{format_bytes(available)} are available"
        )
    if problems:
        raise ResourceError(
            "; ".join(problems), hint="free some, or calibrate with fewer or shorter samples"
        )
