"""Cross-entropy as one kernel over whole logits."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "one kernel over whole logits (flash-attn's CrossEntropyLoss, a compiled cross-entropy)"


def loss_bytes(run: LossRun) -> int:
    """Logits and their gradient in the compute type, 2eV a token; FP32 only inside the kernel.

    Sources: Dao-AILab/flash-attention, flash_attn/losses/cross_entropy.py without
    inplace_backward, which llm-foundry calls fused_crossentropy; torch.compile of
    F.cross_entropy(logits.float()), by the allocator.
    """
    return 2 * run.compute_bytes * run.tokens * run.vocabulary
