"""ZeRO shards over data-parallel GPUs: over one, it shards nothing."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import ZERO, Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """A stage with nothing to shard over, and several GPUs without a stage."""
    offloads = case.device("offload_optimizer") != "none" or case.device("offload_param") != "none"
    if case.stage and case.ranks == 1 and not offloads:
        yield Finding(
            severity="warning",
            key=f"{ZERO}.stage",
            message=f"data-parallel degree 1: stage {case.stage} shards nothing and its buckets "
            "come on top",
            advice="leave ZeRO out, use more GPUs, or offload the optimizer",
        )
    if case.stage == 0 and case.ranks > 1:
        states = (8 + 4) * case.trained.total
        saved = states - (8 + 4) * case.job.divided(case.trained)
        yield Finding(
            severity="note",
            key=f"{ZERO}.stage",
            message=f"every one of the {case.ranks} GPUs holds all FP32 weights and Adam states",
            cost_bytes=saved,
            advice="stage 1 shards them at almost no cost",
        )
