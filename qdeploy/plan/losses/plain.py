"""Cross-entropy straight on the logits, in their own type."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "F.cross_entropy on the logits in the compute type, logits held"


def loss_bytes(run: LossRun) -> int:
    """Logits, log-softmax, its gradient and that of the logits in the compute type: 4eV a token.

    PyTorch keeps the log-softmax in the type of the logits (aten, cross_entropy_loss).
    """
    return 4 * run.compute_bytes * run.tokens * run.vocabulary
