"""Round to nearest: one symmetric scale an output channel from its largest weight."""

from __future__ import annotations

from qdeploy.core.affine import quantize_per_channel
from qdeploy.quant.block import BlockWork

NEEDS_INPUTS = False


def run(work: BlockWork) -> None:
    """Quantize all linears of the block."""
    for linear in work.linears:
        scale_dtype = work.dtypes[f"{linear}.weight"]
        work.quantized[linear] = quantize_per_channel(work.weight(linear), scale_dtype)
        work.note_method(linear, "rtn")
