"""An out-of-memory error in the planner's terms, with the smallest change."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from qdeploy.core.artifacts import write_text
from qdeploy.core.errors import InputError, RunError
from qdeploy.plan.oom import explain, read_log, render_explanation
from qdeploy.train.recipe import Recipe
from qdeploy.train.request import run_request

_CPU_MESSAGES = ("DefaultCPUAllocator", "can't allocate memory", "Cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a GPU or the host has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(
        text in str(error) for text in _CPU_MESSAGES
    )


def explained(error: BaseException, recipe: Recipe, rank: int) -> RunError:
    """`error`, held against the recipe's plan. The traceback is kept in `out`/log."""
    log = Path(recipe.out) / "log" / f"out-of-memory-rank-{rank}.txt"
    write_text(log, "".join(traceback.format_exception(error)))
    kept = f"checkpoints are kept; the traceback is in {log}"
    try:
        explanation = explain(read_log(log), run_request(recipe))
    except InputError:
        # An error of another form, a bare MemoryError say: nothing to read sizes from.
        return RunError(f"rank {rank} is out of memory: {error!r}", hint=kept)
    _, *lines = render_explanation(explanation)
    return RunError(f"rank {rank} is out of memory\n" + "\n".join(lines), hint=kept)
