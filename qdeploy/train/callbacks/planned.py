"""What the plan expects in each phase of a recipe's step."""

from __future__ import annotations

from qdeploy.plan.job import make_job
from qdeploy.plan.moments import moments
from qdeploy.plan.schema import Candidate
from qdeploy.train.callbacks.events import Phase
from qdeploy.train.recipe import Recipe
from qdeploy.train.request import layout_of, run_request


def planned_bytes(recipe: Recipe, planned: Candidate) -> dict[Phase, int]:
    """Phase -> bytes of one process, on the basis of `planned`; `between` is not planned.

    The recipe's strategy must be filled in. Raises InputError for what cannot be planned.
    """
    parts = {
        moment: sum(sizes.values())
        for moment, sizes in moments(make_job(run_request(recipe)), layout_of(recipe)).items()
    }
    beside = planned.per_gpu.framework_bytes
    states = planned.per_gpu.weights_bytes + planned.per_gpu.master_weights_bytes
    return {
        "load": states + beside,
        "forward": parts["loss"] + beside,
        "backward": max(parts["backward"], parts["end"]) + beside,
        "step": parts["step"] + beside,
    }
