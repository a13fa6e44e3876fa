"""Cross-entropy on an FP32 copy of logits that are dropped before the backward pass."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "F.cross_entropy on an FP32 copy; logits dropped before backward (torchtitan)"


def loss_bytes(run: LossRun) -> int:
    """Log-softmax, its gradient and that of the FP32 logits together: 12 V a token.

    The forward pass needs less: 16-bit logits, their copy and the log-softmax, 10 V. Source:
    pytorch/torchtitan, train.py of December 2024, loss_fn and `del pred`.
    """
    return 12 * run.tokens * run.vocabulary
