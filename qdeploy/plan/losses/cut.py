"""Apple's cut cross-entropy: logits in blocks inside one kernel, never in memory."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "Apple's cut cross-entropy: no logits in memory"


def loss_bytes(run: LossRun) -> int:
    """Gradients of the hidden states, eH a token, and of the head, eVH if it is trained.

    Beside them a token's log-sum and loss in FP32 and its index, 16 bytes. Source:
    apple/ml-cross-entropy, cut_cross_entropy/cce_backward.py, without FP32 accumulation, which is
    off unless asked for.
    """
    head = run.hidden_size * run.vocabulary if run.head_trained else 0
    return run.compute_bytes * (run.hidden_size * run.tokens + head) + 16 * run.tokens
