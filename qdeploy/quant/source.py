"""Tensors of the source checkpoint, read one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from qdeploy.core.errors import InputError
from qdeploy.models.checkpoint import Checkpoint


class Source:
    """Reads tensors by name; files stay open (memory-mapped) between reads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._open: dict[str, Any] = {}

    def read(self, name: str) -> Tensor:
        """Tensor `name` in its stored dtype. Raises InputError when it holds NaN or infinity."""
        file = self.checkpoint.tensors[name].file
        if file not in self._open:
            self._open[file] = safe_open(self.checkpoint.folder / file, framework="pt").__enter__()
        tensor: Tensor = self._open[file].get_tensor(name)
        if not all_finite(tensor):
            raise InputError(
                f"{name} holds NaN or infinity, nothing can be quantized from it",
                hint="check the training run, or copy the checkpoint again",
            )
        return tensor

    def under(self, prefix: str) -> list[str]:
        """Names of all tensors of the module `prefix`, sorted."""
        return sorted(n for n in self.checkpoint.tensors if n.startswith(f"{prefix}."))


def all_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    # Both extremes are NaN where any value is; several times faster than testing each value.
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


@contextmanager
def open_source(checkpoint: Checkpoint) -> Iterator[Source]:
    """A `Source` whose files are closed at the end."""
    source = Source(checkpoint)
    try:
        yield source
    finally:
        for file in source._open.values():
            file.__exit__(None, None, None)
