"""Round to nearest: each symmetric scale from the largest weight that it holds for."""

from __future__ import annotations

from qdeploy.core.affine import quantize_weight
from qdeploy.quant.block import BlockWork

NEEDS_INPUTS = False
NEEDS_QUANTIZED_ACTIVATIONS = False


def run(work: BlockWork) -> None:
    """Quantize all linears of the block."""
    for linear in work.linears:
        scale_dtype = work.dtypes[f"{linear}.weight"]
        work.quantized[linear] = quantize_weight(
            work.weight(linear), work.scheme.weights, scale_dtype
        )
        work.note_method(linear, "rtn")
