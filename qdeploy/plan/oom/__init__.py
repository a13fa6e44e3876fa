"""Why a training run was out of memory, from its log.

`read_log` finds the messages (`messages`) and what the run was doing (`frames`); `explain` says
which part was too large, against the plan of a request where one is given (`planned`, `tensors`),
and the smallest change (`changes`).
"""

from qdeploy.plan.oom.explain import explain
from qdeploy.plan.oom.log import read_log
from qdeploy.plan.oom.render import render_explanation
from qdeploy.plan.oom.schema import Explanation, OomReport

__all__ = ["Explanation", "OomReport", "explain", "read_log", "render_explanation"]
