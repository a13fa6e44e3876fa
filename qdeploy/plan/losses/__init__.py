"""Losses, one file each: what the logits and the chain of the cross-entropy take at their peak.

Each file defines what `Loss` says; its name is its name on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from qdeploy.core.plugins import load_plugin

_PACKAGE = "qdeploy.plan.losses"


@dataclass(frozen=True)
class LossRun:
    """Sizes of the loss on one GPU."""

    tokens: int
    """Tokens of the micro-batch on this GPU."""
    vocabulary: int
    """Logits of a token on this GPU: the vocabulary, or this rank's share of it."""
    hidden_size: int
    compute_bytes: int
    head_trained: bool
    """The head's weight gets a gradient."""
    sequences: int = 1
    """Sequences of the micro-batch on this GPU."""
    compiled: bool = False
    """torch.compile fuses the loss."""


class Loss(Protocol):
    """A loss."""

    SUMMARY: str

    def loss_bytes(self, run: LossRun) -> int:
        """Bytes that logits, their loss and their gradients take together at their peak."""


def find_loss(name: str) -> Loss:
    """The loss called `name`. Raises UnknownNameError."""
    return cast("Loss", load_plugin(_PACKAGE, name, "loss"))
