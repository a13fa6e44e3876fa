"""What every callback of a run knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qdeploy.plan.schema import Candidate
from qdeploy.train.recipe import Recipe

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class RunContext:
    """One process of a run."""

    recipe: Recipe
    """With strategy, offload and checkpointing filled in, as `dry_run` gives it."""
    planned: Candidate
    """What the planner expects of this very recipe."""
    capacity_bytes: int | None
    """What one GPU (on CPUs: the node) has; None: what the process itself finds."""
    out: Path
    """Folder of the run; the log goes to its `log/rank-N.jsonl`."""
    rank: int
    world: int
    device: Device

    @property
    def log_path(self) -> Path:
        """The log of this process, one JSON object a line."""
        return log_path(self.out, self.rank)


def log_path(out: Path, rank: int) -> Path:
    """Where the log of `rank` lies in the folder of a run."""
    return out / "log" / f"rank-{rank}.jsonl"
