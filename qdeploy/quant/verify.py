"""After writing: every tensor is read again from disk and compared with what was in memory."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from qdeploy.core.affine import dequantize
from qdeploy.core.artifacts import read_json
from qdeploy.core.errors import QdeployError, RunError
from qdeploy.models.checkpoint import open_checkpoint
from qdeploy.quant.manifest import VerifyRecord
from qdeploy.quant.output import tensor_digest
from qdeploy.quant.source import open_source


def verify(
    folder: Path,
    file_format: ModuleType,
    stored: dict[str, str],
    dequantized: dict[str, str],
) -> VerifyRecord:
    """Compare the checkpoint in `folder` with digests taken in memory.

    `stored` holds the digest of every tensor, `dequantized` that of the weights [O, I] in float32
    for which each quantized linear stands. Raises RunError that names what differs.
    """
    try:
        wrong = _differing(folder, file_format, stored, dequantized)
    except QdeployError as error:
        raise RunError(f"the written folder cannot be read again: {error.message}") from None
    if wrong:
        raise RunError(
            f"verification failed: {len(wrong)} tensors on disk are not those that were written, "
            f"first {wrong[0]}",
            hint="check the disk and run again",
        )
    # Equal digests are equal bits, so no weight differs by more than 0.
    return VerifyRecord(tensors=len(stored), mismatches=len(wrong), max_abs_error=0.0)


def _differing(
    folder: Path,
    file_format: ModuleType,
    stored: dict[str, str],
    dequantized: dict[str, str],
) -> list[str]:
    checkpoint = open_checkpoint(folder)
    names = file_format.linear_names(read_json(folder / "config.json"), checkpoint.tensors)
    wrong = sorted(set(stored) ^ set(checkpoint.tensors)) + sorted(set(dequantized) ^ set(names))
    with open_source(checkpoint) as source:
        present = [name for name in stored if name in checkpoint.tensors]
        wrong += [name for name in present if tensor_digest(source.read(name)) != stored[name]]
        for name in (n for n in names if n in dequantized):
            parts = {tensor: source.read(tensor) for tensor in source.under(name)}
            if any(tensor in wrong for tensor in parts):
                continue
            weight = dequantize(file_format.unpack(name, parts), torch.float32)
            if tensor_digest(weight) != dequantized[name]:
                wrong.append(name)
    return wrong
