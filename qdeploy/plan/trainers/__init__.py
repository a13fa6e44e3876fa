"""Trainers, one file each: what a block of their models keeps, and how they hold numbers.

Each file defines what `Trainer` says; its name is its name on the command line.
"""

from __future__ import annotations

from typing import Protocol, cast

from qdeploy.core.plugins import load_plugin
from qdeploy.plan.request import Recompute
from qdeploy.plan.saved import BlockRun, Saved

_PACKAGE = "qdeploy.plan.trainers"


class Trainer(Protocol):
    """A trainer: its models' code and its defaults."""

    SUMMARY: str
    LOSS: str
    """Name of the loss it uses unless another one is asked for; see `losses`."""
    PARALLEL_LOSS: str
    """The same with tensor parallelism."""
    ADAPTER_BYTES: int
    """Bytes of an adapter's weight in 16-bit training."""
    AUTOCASTS: bool
    """Mixed precision runs under torch.autocast, whatever the type of the weights."""
    RECOMPUTES: tuple[Recompute, ...]
    """What its checkpointing can recompute."""
    UPCASTS_BASE: bool
    """Embeddings, norms and head beside a quantized base are FP32
    (peft.prepare_model_for_kbit_training)."""
    QUANTIZES_HEAD: bool
    """A quantized base has its head quantized too."""
    WHOLE_GRADIENTS: bool
    """Under FSDP adapters lie in one flat parameter with the frozen weights of their block, whose
    gradient covers all of it and waits unsharded (FSDP1 without a wrapping policy for adapters)."""
    WORKSPACE_BYTES: int
    """What its libraries hold on a GPU beside tensors of the model: cuBLAS workspaces."""

    def block(self, run: BlockRun) -> list[Saved]:
        """What one block keeps for its backward pass, for one token."""

    def working_bytes(self, run: BlockRun) -> int:
        """Bytes a token of what one block's backward pass needs at its peak beyond `block`:
        gradients of activations that are there together."""


def find_trainer(name: str) -> Trainer:
    """The trainer called `name`. Raises UnknownNameError."""
    return cast("Trainer", load_plugin(_PACKAGE, name, "trainer"))
