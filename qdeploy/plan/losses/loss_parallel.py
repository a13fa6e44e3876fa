"""Cross-entropy over logits that are divided by the vocabulary (PyTorch's loss_parallel)."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "loss_parallel of torch.distributed.tensor over a divided vocabulary (torchtitan)"


def loss_bytes(run: LossRun) -> int:
    """Four FP32 tensors of this rank's logits, 16 V a token, in the backward pass.

    Log-softmax, one-hot, their sum with the exponential, and its product with the gradient.
    Source: torch/distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward.
    """
    return 16 * run.tokens * run.vocabulary
