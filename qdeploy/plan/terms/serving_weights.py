"""Weights that a serving engine holds on one GPU, all experts resident.

- bf16: 2 a parameter (fp16 is as large).
- int8: a byte for each weight of the blocks' linears, a 16-bit scale for each of their outputs
  (compressed-tensors, int-quantized, channel strategy).
- int4: half a byte, and for 128 weights of a row an FP16 scale and a 4-bit zero point (GPTQ, AWQ).

Norms, routers, embeddings and head stay in 16 bits. Tensor parallelism divides linears, embedding
and head; norms and routers are whole on every GPU.
"""

from __future__ import annotations

from typing import Literal, get_args

from qdeploy.plan.rank import Rank
from qdeploy.plan.terms.weights import base_bytes

ServedAs = Literal["bf16", "int8", "int4"]

SERVED_AS: tuple[str, ...] = get_args(ServedAs)
_STORED_AS = {"int8": "int8", "int4": "gptq-int4"}


def serving_weights_bytes(rank: Rank, served_as: ServedAs, *, experts: bool = True) -> int:
    """Weights on one GPU of the model that `rank` divides.

    `experts`: routed and shared experts are quantized too, as some tools do; `qdeploy quantize`
    leaves them in 16 bits.
    """
    parameters = rank.parameters.total
    if served_as == "bf16":
        return 2 * parameters
    kept = [] if experts else [*rank.shape.expert_linears, *rank.shape.shared_expert_linears]
    stored = inside = 0
    for linear, count in rank.linears:
        if linear in kept:
            continue
        stored += count * base_bytes(_STORED_AS[served_as], linear)
        inside += count * linear.weights
    return -(-stored // rank.tensor) + 2 * (parameters - -(-inside // rank.tensor))
