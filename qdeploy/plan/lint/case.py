"""What a rule looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema
from qdeploy.plan.deepspeed import SIZES, element_count, given_size
from qdeploy.plan.job import Job, make_job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.rank import Count
from qdeploy.plan.request import Offload, PlanRequest

Severity = Literal["error", "warning", "note"]
ZERO = "zero_optimization"


class Finding(Schema):
    """One thing about one setting."""

    severity: Severity
    """error: the run stops or does something else than written; warning: it wastes memory or
    time, or trains differently than meant; note: what a setting costs."""
    key: str
    """Path of the setting: zero_optimization.reduce_bucket_size."""
    message: str
    cost_bytes: int | None = None
    """Memory that the setting takes here: of one GPU, or of one node's host where the message
    says so; None: none, or not known."""
    advice: str | None = None
    """What to do; None: nothing needs to be done."""

    def line(self) -> str:
        """The finding as one line for a person."""
        said = f"{self.severity}: {self.key}: {self.message}"
        return f"{said}; {self.advice}" if self.advice else said


@dataclass(frozen=True)
class Case:
    """A configuration together with the run that it is for."""

    config: Mapping[str, Any]
    job: Job
    stage: int

    @property
    def request(self) -> PlanRequest:
        """The run."""
        return self.job.request

    @property
    def zero(self) -> Mapping[str, Any]:
        """The block `zero_optimization`; empty where there is none."""
        return block(self.config, ZERO)

    @property
    def layout(self) -> Layout:
        """The layout of a `stage` of at least 1."""
        strategy = find_strategy(f"zero{self.stage}")
        offload: Offload = "none"
        if self.device("offload_optimizer") != "none":
            offload = "optimizer"
        if self.stage == 3 and self.device("offload_param") != "none":
            offload = "nvme" if self.device("offload_param") == "nvme" else "all"
        return Layout(strategy, offload, self.request.checkpointing is not False)

    @property
    def ranks(self) -> int:
        """GPUs that ZeRO shards over."""
        return self.request.data_parallel * self.request.context_parallel

    @property
    def trained(self) -> Count:
        """Trained parameters on one GPU before sharding."""
        return self.job.held_trained

    @property
    def share(self) -> int:
        """Trained parameters whose FP32 states one GPU holds."""
        return self.job.divided(self.trained) if self.stage else self.trained.total

    def size(self, name: str) -> int | None:
        """The size `name` in elements, with `auto` and defaults filled in; None: malformed."""
        try:
            return element_count(name, given_size(self.zero, name), self.job.shape.hidden_size)
        except InputError:
            return None

    def given(self, name: str) -> bool:
        """Whether the configuration itself has the size `name`."""
        return name in self.zero or name.removeprefix("stage3_") in self.zero

    def device(self, offloaded: str) -> str:
        """Where `offload_optimizer` or `offload_param` puts things: none, cpu or nvme."""
        old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}
        if self.zero.get(old[offloaded]) is True:
            return "cpu"
        return str(block(self.zero, offloaded).get("device", "none"))

    def enabled(self, name: str) -> bool:
        """Whether the block `name` (bf16, fp16, torch_autocast) has `enabled`: true."""
        return block(self.config, name).get("enabled") is True


def block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object at `name`; empty where there is none or something else."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def make_case(config: Mapping[str, Any], request: PlanRequest) -> Case:
    """The case of `config` for `request`.

    Raises InputError for a stage that there is not and for a `zero_optimization` that is no
    object.
    """
    zero = config.get(ZERO, {})
    if isinstance(zero, bool) or not isinstance(zero, Mapping):
        raise InputError(
            f"{ZERO} must be an object, found {zero!r}", hint='write {"stage": 2}, for example'
        )
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise InputError(f"{ZERO}.stage must be 0, 1, 2 or 3, found {stage!r}")
    micro = config.get("train_micro_batch_size_per_gpu")
    if request.micro_batch is None and isinstance(micro, int) and micro > 0:
        request = replace(request, micro_batch=micro)
    return Case(config, make_job(replace(request, ds_config=None)), int(stage))


def size_path(name: str) -> str:
    """The path of the size `name`."""
    assert name in SIZES
    return f"{ZERO}.{name}"
