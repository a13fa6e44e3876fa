"""What watches a training run: memory, precision, bad numbers, progress, balance of the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdeploy.train.callbacks.context import RunContext

if TYPE_CHECKING:
    from transformers import TrainerCallback

__all__ = ["RunContext", "callbacks"]


def callbacks(context: RunContext) -> list[TrainerCallback]:
    """The callbacks of this process, for the `callbacks` of a transformers Trainer.

    Call it before the model is loaded: what the process takes by then counts as the program's own,
    everything later as the run's.
    """
    from qdeploy.train.callbacks.imbalance import Imbalance
    from qdeploy.train.callbacks.log import Log
    from qdeploy.train.callbacks.memory import Memory
    from qdeploy.train.callbacks.nonfinite import NonFinite
    from qdeploy.train.callbacks.precision import Precision
    from qdeploy.train.callbacks.progress import Progress

    log = Log(context)
    memory = Memory(context, log)
    return [
        NonFinite(context),
        memory,
        Imbalance(context, memory),
        Precision(context, log),
        Progress(context, log, memory),
    ]
