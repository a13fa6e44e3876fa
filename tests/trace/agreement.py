"""The formulas of the Hugging Face trainer and the trace, for the same run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from qdeploy.models.family import shape_of
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import hf
from qdeploy.trace.activations import TracedActivations, TraceRun, trace
from qdeploy.trace.adapters import Adapters

PURE = TraceRun(batch=2, seq_len=24)
AUTOCAST = replace(PURE, weights="fp32", autocast="bf16")
FP32 = replace(PURE, weights="fp32")
LOW_AUTOCAST = replace(PURE, autocast="bf16")


@dataclass(frozen=True)
class Compared:
    """Bytes a token of the last block, counted twice."""

    traced: float
    formula: int
    traced_working: float
    formula_working: int
    model: TracedActivations


def compare(config: dict[str, Any], run: TraceRun) -> Compared:
    """Trace the model of `config`, and count its last block by the formulas."""
    known = block_run(config, run)
    tokens = run.batch * run.seq_len
    traced = trace(config, run)
    return Compared(
        traced=traced.blocks[-1] / tokens,
        formula=saved_bytes(known, hf.block(known), tensor=1, sequence=1),
        traced_working=traced.working_bytes / tokens,
        formula_working=hf.working_bytes(known),
        model=traced,
    )


def block_run(config: dict[str, Any], run: TraceRun) -> BlockRun:
    """The same run in the planner's words."""
    shape, adapters = shape_of(config, "model"), run.adapters
    quantized = adapters is not None and adapters.quantized
    return BlockRun(
        shape=shape,
        moe=shape.experts > 0,
        compute_bytes=4 if run.weights == "fp32" and run.autocast is None else 2,
        residual_bytes=4 if run.weights == "fp32" or quantized else 2,
        autocast=run.autocast is not None,
        attention=run.attention,
        keys=run.seq_len,
        padded=run.padded,
        trained=None if adapters is None else frozenset(),
        adapted=frozenset() if adapters is None else adapters.targets,
        lora_dropout=adapters is not None and adapters.dropout > 0,
        lora_rank=0 if adapters is None else adapters.rank,
        quantized_base=quantized,
        sdpa_flash=run.sdpa_flash,
    )


def adapters(config: dict[str, Any], **other: Any) -> Adapters:
    """An adapter of rank 4 beside every plain linear of the blocks."""
    shape = shape_of(config, "model")
    mlp = shape.shared_expert_linears if shape.experts else shape.mlp_linears
    names = frozenset(linear.name for linear in [*shape.attention_linears, *mlp])
    return Adapters(rank=4, targets=names, **other)
