"""QLoRA: LoRA over a base in NF4 with double quantization (arXiv 2305.14314)."""

from __future__ import annotations

from qdeploy.plan.peft.lora import (
    IDLE_BLOCKS,
    adapted,
    block_parameters,
    outside_parameters,
    trained,
)
from qdeploy.plan.request import Base

BASE: Base = "nf4-dq"

__all__ = ["BASE", "IDLE_BLOCKS", "adapted", "block_parameters", "outside_parameters", "trained"]
