"""Memory of training and of serving, without torch.

`plan(PlanRequest(...))` looks up model, GPU and optimizer (`job`), lays the run out in every way
that is possible (`layout`), sizes each by one bookkeeping (`accounting`, made of `terms`), and
chooses (`choice`).
"""

from qdeploy.plan.planner import plan
from qdeploy.plan.request import PlanRequest
from qdeploy.plan.schema import Plan

__all__ = ["Plan", "PlanRequest", "plan"]
