"""Gathered weights of stage 3: live, prefetched, and those that are never sharded."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.models.shape import ModelShape
from qdeploy.plan.lint.case import Case, Finding, size_path


def check(case: Case) -> Iterator[Finding]:
    """What gathered weights take on a GPU."""
    if case.stage != 3:
        return
    yield from _live(case)
    yield from _prefetch(case)
    yield from _persistent(case)


def _live(case: Case) -> Iterator[Finding]:
    live = case.size("stage3_max_live_parameters")
    if live is None:
        return
    parameters = case.job.parameters
    taken = case.job.compute_bytes * min(live, parameters)
    whole = live >= parameters
    yield Finding(
        severity="warning" if whole and case.ranks > 1 else "note",
        key=size_path("stage3_max_live_parameters"),
        message=(
            f"{live:,}: the whole model may be gathered at once, {format_bytes(taken)} a GPU"
            if whole
            else f"{live:,}: up to {format_bytes(taken)} of gathered weights a GPU"
        ),
        cost_bytes=taken,
        advice=f"a block has {case.job.shape.block_parameters:,}: twice that is enough"
        if whole
        else None,
    )


def _prefetch(case: Case) -> Iterator[Finding]:
    elements = case.size("stage3_prefetch_bucket_size")
    if elements:
        taken = case.job.compute_bytes * min(elements, case.job.parameters)
        yield Finding(
            severity="note",
            key=size_path("stage3_prefetch_bucket_size"),
            message=f"{elements:,} elements: {format_bytes(taken)} of weights gathered ahead",
            cost_bytes=taken,
        )


def _persistent(case: Case) -> Iterator[Finding]:
    threshold = case.size("stage3_param_persistence_threshold")
    if threshold is None:
        return
    count = persistent_parameters(case.job.shape, threshold)
    taken = case.job.compute_bytes * count
    much = count * 10 > case.job.parameters
    yield Finding(
        severity="warning" if much else "note",
        key=size_path("stage3_param_persistence_threshold"),
        message=f"tensors below {threshold:,} elements stay whole on every GPU: {count:,} "
        f"parameters, {format_bytes(taken)}",
        cost_bytes=taken,
        advice=f"use {10 * case.job.shape.hidden_size:,}, ten times the hidden size"
        if much
        else None,
    )


def persistent_parameters(shape: ModelShape, threshold: int) -> int:
    """Parameters in tensors of fewer than `threshold` elements, in the blocks and the embedding."""
    dense = shape.layers - shape.moe_layers
    linears = [*shape.attention_linears * shape.layers, *shape.mlp_linears * dense]
    experts = shape.moe_layers * shape.experts
    linears += [*shape.expert_linears * experts, *shape.shared_expert_linears * shape.moe_layers]
    weights = [linear.weights for linear in linears]
    biases = [linear.out_features for linear in linears if linear.bias]
    norms = [shape.hidden_size] * (shape.layers * shape.norms_per_block + int(shape.final_norm))
    tables = [shape.vocab_size * shape.hidden_size]
    return sum(size for size in [*weights, *biases, *norms, *tables] if size < threshold)
