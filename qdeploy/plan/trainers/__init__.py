"""Trainers, one file each: what a block of their models keeps, and how they hold numbers.

Each file defines what `Trainer` says; its name is its name on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from qdeploy.core.plugins import load_plugin
from qdeploy.core.units import MIB
from qdeploy.plan.request import Recompute
from qdeploy.plan.saved import BlockRun, Saved

_PACKAGE = "qdeploy.plan.trainers"


@dataclass(frozen=True)
class Traits:
    """How a trainer holds numbers, and its defaults."""

    summary: str
    loss: str
    """Name of the loss it uses unless another one is asked for; see `losses`."""
    parallel_loss: str | None = None
    """The same with tensor parallelism; None: no other."""
    adapter_bytes: int = 2
    """Bytes of an adapter's weight in 16-bit training (4: peft's autocast_adapter_dtype)."""
    autocasts: bool = False
    """Mixed precision runs under torch.autocast, whatever the type of the weights."""
    recomputes: tuple[Recompute, ...] = ("block",)
    """What its checkpointing can recompute."""
    upcasts_base: bool = False
    """Embeddings, norms and head beside a quantized base are FP32
    (peft.prepare_model_for_kbit_training)."""
    quantizes_head: bool = False
    """A quantized base has its head quantized too."""
    whole_gradients: bool = False
    """Under FSDP adapters lie in one flat parameter with the frozen weights of their block, whose
    gradient covers all of it and waits unsharded (FSDP1 without a wrapping policy for adapters)."""
    workspace_bytes: int = 32 * MIB
    """What its libraries hold on a GPU beside tensors of the model: cuBLAS workspaces (8 MiB
    before Hopper, 32 MiB on it)."""


class Trainer(Protocol):
    """A trainer: its traits and its models' code."""

    TRAITS: Traits

    def block(self, run: BlockRun) -> list[Saved]:
        """What one block keeps for its backward pass, for one token."""

    def working_bytes(self, run: BlockRun) -> int:
        """Bytes a token of what one block's backward pass needs at its peak beyond `block`:
        gradients of activations that are there together."""


def find_trainer(name: str) -> Trainer:
    """The trainer called `name`. Raises UnknownNameError."""
    return cast("Trainer", load_plugin(_PACKAGE, name, "trainer"))
