"""DeepSeek V3 and R1: V2's architecture; its routing differs in what has no parameters."""

from __future__ import annotations

from qdeploy.models.families import deepseek_v2

FAMILY = deepseek_v2.FAMILY
shape = deepseek_v2.shape
