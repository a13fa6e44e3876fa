"""Configurations of other trainers, one file each: the plan's choice in their own words.

Each file defines `emit(plan) -> {file name: text}`; its name is its name on the command line.
What a trainer cannot express raises InputError: a configuration that says less than the plan
would need other memory than planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from qdeploy.core.errors import InputError
from qdeploy.core.plugins import load_plugin
from qdeploy.plan.deepspeed import ds_config
from qdeploy.plan.hf_names import model_id
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.request import Offload, PlanRequest
from qdeploy.plan.schema import Candidate, Plan

PACKAGE = "qdeploy.plan.emit"
DS_FILE = "ds_config.json"


class Emitter(Protocol):
    """A writer of another trainer's configuration."""

    def emit(self, plan: Plan) -> dict[str, str]:
        """File name -> text. Raises InputError for what the trainer cannot express."""


def find_emitter(name: str) -> Emitter:
    """The emitter called `name`. Raises UnknownNameError."""
    return cast("Emitter", load_plugin(PACKAGE, name, "emit"))


@dataclass(frozen=True)
class Choice:
    """The chosen layout of a plan, with its job."""

    model: str
    """A hub id or folder."""
    request: PlanRequest
    """The plan's request, narrowed to the chosen layout."""
    job: Job
    layout: Layout
    gradient_clipping: float = 1.0

    @property
    def deepspeed(self) -> bool:
        """DeepSpeed runs it."""
        return self.layout.deepspeed

    @property
    def fsdp(self) -> bool:
        """PyTorch's FSDP runs it."""
        return self.layout.fsdp

    def ds_json(self) -> str:
        """The DeepSpeed configuration as text. Raises InputError for another strategy."""
        import json

        return json.dumps(ds_config(self.job, self.layout), indent=2) + "\n"


def choice_of(plan: Plan) -> Choice:
    """What `plan` chose.

    Raises InputError when nothing fits, and for what is known to none of the trainers: other
    model code than transformers', model parallelism, an optimizer inside the backward pass.
    """
    chosen = chosen_of(plan, "choice to write a configuration for")
    request = narrowed(plan, chosen)
    _check_common(request)
    layout = Layout(
        find_strategy(chosen.strategy), cast("Offload", chosen.offload), chosen.checkpointing
    )
    return Choice(
        model=model_id(str(plan.request.model)),
        request=request,
        job=make_job(replace(request, model=plan.model.shape)),
        layout=layout,
    )


def chosen_of(plan: Plan, wanted: str) -> Candidate:
    """What `plan` chose. Raises InputError, "there is no `wanted`", when nothing fits."""
    if plan.chosen is None:
        raise InputError(
            f"nothing fits, so there is no {wanted}",
            hint=plan.suggestion or "plan with more or larger GPUs",
        )
    return plan.chosen


def narrowed(plan: Plan, candidate: Candidate) -> PlanRequest:
    """The request of `plan` for this one candidate."""
    return replace(
        plan.request,
        strategy=candidate.strategy,
        offload=cast("Offload", candidate.offload),
        checkpointing=candidate.checkpointing,
        micro_batch=candidate.micro_batch,
        precision=plan.precision.dtype
        if plan.request.precision != "bf16-pure"
        else plan.request.precision,
    )


def mapping_text(values: dict[str, Any], *comments: str) -> str:
    """`values` as YAML, in their order, below comments."""
    import yaml

    head = "".join(f"# {comment}\n" for comment in comments)
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def refuse(trainer: str, what: str, hint: str) -> InputError:
    """The error for a choice that `trainer` has no key for."""
    return InputError(f"{trainer} has no setting for {what}", hint=hint)


def _check_common(request: PlanRequest) -> None:
    if request.trainer != "hf":
        raise InputError(
            f"the plan is for the model code of {request.trainer}; these configurations run "
            "transformers' models, which need other memory",
            hint="plan with --trainer hf",
        )
    if request.model_parallel > 1 or request.expert_parallel > 1:
        raise InputError(
            "the configurations written here are data-parallel: no tensor, pipeline, context or "
            "expert parallelism",
            hint="plan with degrees of 1",
        )
    if request.optimizer_in_backward:
        raise InputError(
            "no configuration written here can step the optimizer inside the backward pass",
            hint="plan without --optimizer-in-backward",
        )
    if request.checkpointing and request.recompute != "block":
        raise InputError(
            f"checkpointing that recomputes only {request.recompute} has no setting in these "
            "trainers: they recompute whole blocks",
            hint="plan with --recompute block",
        )
