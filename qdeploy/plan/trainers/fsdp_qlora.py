"""AnswerDotAI/fsdp_qlora: transformers' model classes under FSDP, everything in BF16.

Its mixed-precision policy computes, reduces and keeps adapters in BF16, and it quantizes linears
without touching the type of the rest (train.py, precision "bf16").
"""

from __future__ import annotations

from qdeploy.plan.trainers.hf import LOSS, PARALLEL_LOSS, WORKSPACE_BYTES, block, working_bytes

SUMMARY = "transformers' model classes with FSDP and adapters in BF16 (AnswerDotAI/fsdp_qlora)"
ADAPTER_BYTES = 2
UPCASTS_BASE = False
AUTOCASTS = False
RECOMPUTES = ("block",)
QUANTIZES_HEAD = False
WHOLE_GRADIENTS = False

__all__ = [
    "ADAPTER_BYTES", "AUTOCASTS", "LOSS", "PARALLEL_LOSS", "QUANTIZES_HEAD", "RECOMPUTES",
    "SUMMARY", "UPCASTS_BASE", "WHOLE_GRADIENTS", "WORKSPACE_BYTES", "block", "working_bytes",
]  # fmt: skip
