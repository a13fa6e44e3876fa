"""Serving: what it is to carry, its memory on one GPU, and over how many GPUs it is divided.

Room is judged as vLLM does: weights, cache, the largest pass and the engine must fit into
`memory_percent` of the card (gpu_memory_utilization, 0.9 by default). An engine then fills all of
that with cache; what is counted here is what the stated load needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.schema import Schema
from qdeploy.models.shape import ModelShape
from qdeploy.plan.gpu import Gpu
from qdeploy.plan.rank import Rank
from qdeploy.plan.terms.kv_cache import kv_cache_bytes
from qdeploy.plan.terms.serving_pass import batched_tokens, engine_bytes, pass_bytes
from qdeploy.plan.terms.serving_weights import SERVED_AS, ServedAs, serving_weights_bytes

SPREAD = {
    "weights": (0, 1),
    "kv_cache": (0, 1),
    "activations": (50, 50),
    "engine": (50, 60),
}
"""Part -> (share that may be missing, share that may come on top), in percent. The last two by the
public logs that `terms/serving_pass.py` names."""


@dataclass(frozen=True)
class ServingTarget:
    """The load that one serving replica is to carry.

    Raises InputError for a size that is not positive, UnknownNameError for an unknown form.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    gpu: str | None = None
    """GPU that serves; None: as the caller says, for a ledger the GPUs of training."""
    count: int = 1
    """GPUs of the serving node, with `gpu`."""
    concurrency: int = 16
    """Requests at the same time."""
    context: int = 4096
    """Tokens of a request, prompt and answer."""
    kv_bits: Literal[8, 16] = 16
    """Bits of a number in the key-value cache."""
    served_as: tuple[ServedAs, ...] = ("bf16", "int8")
    """Forms of the weights that are to be served."""
    quantized_experts: bool = False
    """The experts of a mixture are quantized too; `qdeploy quantize` leaves them in 16 bits."""
    memory_percent: int = 90
    """Share of the card that the engine may use (gpu_memory_utilization)."""

    def __post_init__(self) -> None:
        for name in ("count", "concurrency", "context", "memory_percent"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, found {value!r}")
        if self.memory_percent > 100:
            raise InputError(f"memory_percent must be at most 100, found {self.memory_percent}")
        if self.kv_bits not in (8, 16):
            raise InputError(f"kv_bits must be 8 or 16, found {self.kv_bits!r}")
        for form in self.served_as:
            if form not in SERVED_AS:
                raise UnknownNameError("form of weights", str(form), SERVED_AS)
        if not self.served_as:
            raise InputError("served_as is empty", hint=f"name some of {', '.join(SERVED_AS)}")


class ServingParts(Schema):
    """Memory of one GPU of a serving replica in bytes."""

    weights_bytes: int = Field(ge=0)
    kv_cache_bytes: int
    activations_bytes: int
    """The largest pass."""
    engine_bytes: int
    total_bytes: int

    @property
    def parts(self) -> dict[str, int]:
        """Part -> bytes; they add up to the total."""
        return {name: getattr(self, f"{name}_bytes") for name in SPREAD}

    @property
    def high_bytes(self) -> int:
        """The most that is expected."""
        more = sum(size * SPREAD[name][1] // 100 for name, size in self.parts.items())
        return self.total_bytes + more


@dataclass(frozen=True)
class Placement:
    """A model over the GPUs of one replica."""

    tensor: int
    """Degree of tensor parallelism."""
    parts: ServingParts
    room_bytes: int
    """What one GPU offers the engine."""

    @property
    def fits(self) -> bool:
        """Whether the most that is expected is within the room."""
        return self.parts.high_bytes <= self.room_bytes


def serving_bytes(
    shape: ModelShape,
    weights_bytes: int,
    target: ServingTarget,
    *,
    pass_tokens: int = 2048,
    tensor: int = 1,
) -> ServingParts:
    """Memory of one GPU that holds `weights_bytes` of the model, one of `tensor`.

    `pass_tokens`: tokens of the longest pass (max_num_batched_tokens). Raises InputError for
    negative weights and for a model that generates nothing.
    """
    if weights_bytes < 0:
        raise InputError(f"weights_bytes must not be negative, found {weights_bytes}")
    require_generation(shape)
    cache = kv_cache_bytes(shape, target.context, target.kv_bits // 8, tensor=tensor)
    tokens = min(pass_tokens, target.concurrency * target.context)
    parts = {
        "weights_bytes": weights_bytes,
        "kv_cache_bytes": target.concurrency * cache,
        "activations_bytes": pass_bytes(shape, tokens, target.concurrency, tensor=tensor),
        "engine_bytes": engine_bytes(tensor=tensor),
    }
    return ServingParts(**parts, total_bytes=sum(parts.values()))


def require_generation(shape: ModelShape) -> None:
    """Raise InputError for a model that generates no text."""
    if shape.task != "causal_lm" or not shape.causal:
        raise InputError(
            f"{shape.name} ({shape.family}) does not generate text: serving has no meaning here",
            hint="name a causal language model",
        )


def place(
    rank: Rank,
    served_as: ServedAs,
    target: ServingTarget,
    gpu: Gpu,
    gpus: int,
    *,
    occupied_bytes: int = 0,
) -> Placement:
    """The model over the smallest power of two of `gpus` GPUs that holds it, else over the most.

    `occupied_bytes`: of each GPU, held by something else. A degree must divide the attention heads,
    and divide the key-value heads or be a multiple of them (vllm/config/model.py,
    verify_with_parallel_config).
    """
    shape = rank.shape
    share = gpu.memory_bytes * target.memory_percent // 100
    room = max(0, min(share, gpu.memory_bytes - occupied_bytes))
    degree, placement = 1, None
    while degree <= gpus and shape.heads % degree == 0:
        if shape.kv_heads % degree == 0 or degree % shape.kv_heads == 0:
            divided = Rank(shape, tensor=degree, surplus=rank.surplus)
            weights = serving_weights_bytes(divided, served_as, experts=target.quantized_experts)
            parts = serving_bytes(
                shape,
                weights,
                target,
                pass_tokens=batched_tokens(gpu),
                tensor=degree,
            )
            placement = Placement(degree, parts, room)
            if placement.fits:
                break
        degree *= 2
    assert placement is not None  # one GPU is always possible
    return placement
