"""`frontier.json`: the largest micro-batches and the longest sequences that fit one layout."""

from __future__ import annotations

from typing import ClassVar

from qdeploy.core.artifacts import Artifact
from qdeploy.core.schema import Schema


class Point(Schema):
    """The largest size that fits beside a given one."""

    seq_len: int
    """Tokens of a sequence; 0: none fits."""
    micro_batch: int
    """Sequences of a micro-batch; 0: none fits."""
    at_limit: bool
    """The end of the search stopped it, not the memory: still more fits."""
    relative_token_time: float | None
    """Modelled time of a token, 1.0 for the fastest point of the frontier; None: nothing fits."""

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one GPU (on one group of context-parallel GPUs)."""
        return self.seq_len * self.micro_batch


class Curve(Schema):
    """The frontier with or without checkpointing."""

    checkpointing: bool
    by_seq_len: list[Point]
    """The largest micro-batch for each sequence length."""
    by_micro_batch: list[Point]
    """The longest sequence for each micro-batch, exact to `step` tokens."""

    def points(self) -> list[Point]:
        """All points at which something fits, by sequence length."""
        found = [p for p in (*self.by_seq_len, *self.by_micro_batch) if p.tokens]
        return sorted(found, key=lambda p: (p.seq_len, -p.micro_batch))


class Frontier(Artifact):
    """The largest micro-batches and the longest sequences that fit one layout."""

    SCHEMA: ClassVar[str] = "qdeploy.frontier/1"

    model: str
    gpu: str
    gpus: int
    """Of all nodes."""
    strategy: str
    offload: str
    accumulation_steps: int
    """The same at every point."""
    asked_micro_batch: int
    asked_seq_len: int
    asked_checkpointing: bool
    asked_fits: bool
    """As the plan has it, with its checkpointing."""
    max_positions: int
    """Sequence length that the model was made for."""
    step: int
    """Tokens to which the longest sequences are exact."""
    curves: list[Curve]

    @property
    def fits(self) -> bool:
        """Whether the size that was asked for fits."""
        return self.asked_fits
