"""The smallest change that makes a run fit, when nothing does.

Changes are tried from those that leave the training as it is (kernels, layout), first each, then
all of them, over micro-batch, optimizer and adapters to more GPUs and shorter sequences; last, the
former together with each of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from qdeploy.core.errors import InputError
from qdeploy.plan.request import PlanRequest

_GPUS_OF_A_NODE = 8
_MOST_NODES = 16
_LEAST_SEQ_LEN = 256
_MOST_SUGGESTIONS = 3

_Change = tuple[str, dict[str, Any]]


def suggest(request: PlanRequest, fits: Callable[[PlanRequest], bool]) -> list[str]:
    """Changes after each of which something fits, as options, the smallest first; up to three,
    each of another kind."""
    found: list[str] = []
    kinds: set[frozenset[str]] = set()
    for words, fields in _changes(request):
        kind = frozenset(fields)
        if any(known <= kind for known in kinds):
            continue
        try:
            changed = replace(request, **fields)
        except InputError:
            continue
        if fits(changed):
            found.append(words)
            kinds.add(kind)
        if len(found) == _MOST_SUGGESTIONS:
            break
    return found


def _changes(request: PlanRequest) -> Iterator[_Change]:
    free = list(_free_changes(request))
    costly = list(_costly_changes(request))
    yield from free
    words = " and ".join(words for words, _ in free)
    together = {name: value for _, fields in free for name, value in fields.items()}
    if len(free) > 1:
        yield words, together
    yield from costly
    if free:
        for more, fields in costly:
            yield f"{words} and {more}", {**together, **fields}


def _free_changes(request: PlanRequest) -> Iterator[_Change]:
    if request.attention == "eager":
        yield "--attention sdpa", {"attention": "sdpa"}
    if request.checkpointing is False:
        yield "--checkpointing", {"checkpointing": True}
    if request.loss != "liger":
        yield "--loss liger", {"loss": "liger"}
    if request.strategy is not None or request.offload is not None:
        yield "no --strategy and no --offload", {"strategy": None, "offload": None}


def _costly_changes(request: PlanRequest) -> Iterator[_Change]:
    for size in _halves(request.micro_batch or 1, 1):
        yield f"--micro-batch {size}", {"micro_batch": size}
    if request.peft is None and request.optimizer == "adamw":
        yield "--optimizer adamw8bit", {"optimizer": "adamw8bit"}
    if request.peft is None:
        yield "--peft lora", {"peft": "lora"}
    if request.peft != "qlora":
        yield "--peft qlora", {"peft": "qlora"}
    # `none` is for one GPU.
    strategy = None if request.strategy == "none" else request.strategy
    gpus = request.gpus * 2
    while gpus <= _GPUS_OF_A_NODE:
        yield f"--gpus {gpus}x{request.gpu}", {"gpus": gpus, "strategy": strategy}
        gpus *= 2
    for length in _halves(request.seq_len, _LEAST_SEQ_LEN):
        yield f"--seq-len {length}", {"seq_len": length}
    nodes = request.nodes * 2
    gpus = max(request.gpus, _GPUS_OF_A_NODE)
    while nodes <= _MOST_NODES:
        words = f"--nodes {nodes} --gpus {gpus}x{request.gpu}"
        yield words, {"nodes": nodes, "gpus": gpus, "strategy": strategy}
        nodes *= 2


def _halves(value: int, least: int) -> Iterator[int]:
    value //= 2
    while value >= least:
        yield value
        value //= 2
