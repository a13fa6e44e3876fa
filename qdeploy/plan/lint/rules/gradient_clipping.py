"""Gradient clipping: DeepSpeed's default is none."""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.plan.lint.case import Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """No clipping."""
    value = case.config.get("gradient_clipping", 0)
    if value == 0:
        yield Finding(
            severity="warning",
            key="gradient_clipping",
            message="gradients are not clipped: one bad batch can throw the training off",
            advice='use 1.0, or "auto" for the trainer\'s max_grad_norm',
        )
