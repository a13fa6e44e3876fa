"""Megatron's cross-entropy, in place over logits that are divided by the vocabulary."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "Megatron's cross-entropy, in place in FP32"


def loss_bytes(run: LossRun) -> int:
    """16-bit logits, or later their gradient, and one FP32 copy: 6 V a token; FP32 alone 4 V.

    Softmax and gradient overwrite the copy. Source: NVIDIA/Megatron-LM,
    megatron/core/tensor_parallel/cross_entropy.py. arXiv 2205.05198 counts the copy alone.
    """
    copy = 4 * run.tokens * run.vocabulary
    return (
        copy if run.compute_bytes == 4 else copy + run.compute_bytes * run.tokens * run.vocabulary
    )
