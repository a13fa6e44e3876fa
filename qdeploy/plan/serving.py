"""Memory of serving: weights, key-value cache, one forward pass.

Key-value cache (vLLM and others, paged): 2 x layers x kv_heads x head_dim x bytes for each token
that is held, windowed layers at most their window. An engine reserves whatever it is given; this
is what `concurrency` requests of `context` tokens need.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qdeploy.core.errors import InputError
from qdeploy.core.schema import Schema
from qdeploy.core.units import MIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan.adapters import block_linears, linear_parameters

# CUDA context and the engine's own: 0.47 to 0.92 GiB were measured for the context alone.
_FRAMEWORK_BYTES = 1024 * MIB
# vLLM's default of max_num_batched_tokens, the longest single pass.
_PREFILL_TOKENS = 2048


class ServingParts(Schema):
    """Memory of one serving replica in bytes."""

    weights_bytes: int = Field(ge=0)
    kv_cache_bytes: int
    activations_bytes: int
    """The largest tensors of one pass: one block's and the logits of all requests."""
    framework_bytes: int
    total_bytes: int


def serving_bytes(
    shape: ModelShape,
    weights_bytes: int,
    concurrency: int,
    context: int,
    kv_dtype_bytes: int = 2,
) -> ServingParts:
    """Memory that serving `concurrency` requests of `context` tokens takes.

    Raises InputError for a size that is not positive.
    """
    for name, value in (("concurrency", concurrency), ("context", context)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, found {value}")
    if weights_bytes < 0:
        raise InputError(f"weights_bytes must not be negative, found {weights_bytes}")
    cache = concurrency * kv_cache_bytes(shape, context, kv_dtype_bytes)
    activations = _pass_bytes(shape, concurrency, context)
    return ServingParts(
        weights_bytes=weights_bytes,
        kv_cache_bytes=cache,
        activations_bytes=activations,
        framework_bytes=_FRAMEWORK_BYTES,
        total_bytes=weights_bytes + cache + activations + _FRAMEWORK_BYTES,
    )


def kv_cache_bytes(shape: ModelShape, context: int, dtype_bytes: int = 2) -> int:
    """Key-value cache of one request of `context` tokens; windowed layers hold their window."""
    held = shape.layers * context
    if shape.sliding_window is not None:
        every = shape.full_attention_every
        full = shape.layers // every if every > 1 else 0
        window = min(context, shape.sliding_window)
        held = full * context + (shape.layers - full) * window
    return 2 * shape.kv_heads * shape.head_dim * dtype_bytes * held


def serving_weights_bytes(shape: ModelShape, scheme: Literal["bf16", "int8"]) -> int:
    """Bytes of the served weights.

    bf16: 2 a parameter. int8: one byte for each weight of the blocks' linear layers and a BF16
    scale for each of their output channels; everything else, the head too, stays BF16.
    """
    if scheme == "bf16":
        return 2 * shape.parameters
    linears = linear_parameters(shape)
    scales = shape.layers * sum(out for out, _ in block_linears(shape))
    return linears + 2 * scales + 2 * (shape.parameters - linears)


def _pass_bytes(shape: ModelShape, concurrency: int, context: int) -> int:
    tokens = min(_PREFILL_TOKENS, concurrency * context)
    inner = (2 if shape.gated_mlp else 1) * shape.intermediate_size
    block = 2 * tokens * (2 * shape.hidden_size + inner + shape.intermediate_size)
    return block + 4 * concurrency * shape.vocab_size
