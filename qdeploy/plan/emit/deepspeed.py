"""DeepSpeed: `ds_config.json`, for the Trainer, accelerate or plain DeepSpeed."""

from __future__ import annotations

from qdeploy.plan.emit import DS_FILE, choice_of
from qdeploy.plan.schema import Plan


def emit(plan: Plan) -> dict[str, str]:
    """The DeepSpeed configuration. Raises InputError for a strategy that is not ZeRO."""
    return {DS_FILE: choice_of(plan).ds_json()}
