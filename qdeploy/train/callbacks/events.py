"""The lines of a run's log: what the callbacks write and the report reads.

A line is one JSON object with `event`. A run that is continued appends to the log of the run before
it; a later line of a step replaces an earlier one.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema
from qdeploy.train.callbacks.context import Device

Phase = Literal["load", "forward", "backward", "step", "between"]
"""load: until the first step; forward: with the loss; step: the optimizer's; between: evaluation
and saving."""

Method = Literal["kernel", "sampled"]

PHASES: tuple[Phase, ...] = get_args(Phase)


class Peak(Schema):
    """The most memory of a process in one phase, in bytes; None: not measured on this device."""

    resident_bytes: int
    """Physical memory of the process."""
    allocated_bytes: int | None = None
    """In tensors on the GPU; on CPUs what the C library's allocator has given out, as seen at the
    ends of the phases."""
    reserved_bytes: int | None = None
    """What PyTorch's allocator has taken from the GPU."""
    device_bytes: int | None = None
    """`reserved_bytes` with the CUDA context and the libraries' own memory."""


class Started(Schema):
    """A process begins (or continues) a run."""

    event: Literal["started"] = "started"
    time: float
    """Seconds since the epoch."""
    rank: int
    world: int
    device: Device
    resident_by: Method
    """kernel: the kernel kept the peak of the physical memory; sampled: a thread looked at it."""
    before: Peak
    """What the process had before the model was loaded."""
    planned: dict[Phase, int]
    """Bytes of one process by phase, on the plan's basis."""


class Stepped(Schema):
    """An optimizer step is over."""

    event: Literal["stepped"] = "stepped"
    time: float
    step: int
    seconds: float
    """From the first forward pass to the end of the optimizer's step."""
    tokens: int
    """Tokens of this rank, padding left out."""


class Logged(Schema):
    """What the trainer logged at a step, over all ranks; None: not logged, or not finite."""

    event: Literal["logged"] = "logged"
    step: int
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None


class Scaled(Schema):
    """The loss scale of an FP16 step."""

    event: Literal["scaled"] = "scaled"
    step: int
    scale: float
    """The scale after the step."""
    skipped: bool
    """The gradients were infinite: the step was left out."""


class Grew(Schema):
    """The peaks of all phases so far, written when one of them has grown."""

    event: Literal["grew"] = "grew"
    step: int
    peaks: dict[Phase, Peak]


class Ended(Schema):
    """The training loop is over."""

    event: Literal["ended"] = "ended"
    time: float
    step: int


Event = Annotated[Started | Stepped | Logged | Scaled | Grew | Ended, Field(discriminator="event")]

_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def parse(line: str, where: str) -> Event:
    """The event of one line of a log. Raises InputError for anything else, naming `where`."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{where} is no line of a training log: {first['msg']}") from None
