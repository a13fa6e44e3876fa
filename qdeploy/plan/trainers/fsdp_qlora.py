"""AnswerDotAI/fsdp_qlora: transformers' model classes under FSDP, everything in BF16.

Its mixed-precision policy computes, reduces and keeps adapters in BF16, and it quantizes linears
without touching the type of the rest (train.py, precision "bf16").
"""

from __future__ import annotations

from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers.hf import block, working_bytes

TRAITS = Traits(
    summary="transformers' model classes with FSDP and adapters in BF16 (AnswerDotAI/fsdp_qlora)",
    loss="hf",
)

__all__ = ["TRAITS", "block", "working_bytes"]
