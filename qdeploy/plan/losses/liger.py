"""Liger's fused linear cross-entropy: logits of one chunk of tokens at a time."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "Liger-Kernel's fused linear cross-entropy"


def loss_bytes(run: LossRun) -> int:
    """One chunk of logits, gradient of the hidden states, and the head's gradient if trained.

    Liger-Kernel, src/liger_kernel/ops/fused_linear_cross_entropy.py: ceil(V/H) chunks, whose
    tokens are rounded up to a power of two. The gradient overwrites the logits: eV a token of the
    chunk; eH a token; eVH for the head's weight; 4 a token for the FP32 losses.
    """
    element, vocabulary, hidden = run.compute_bytes, run.vocabulary, run.hidden_size
    chunks = -(-vocabulary // hidden)
    chunk_tokens = min(run.tokens, 1 << (-(-run.tokens // chunks) - 1).bit_length())
    head = element * vocabulary * hidden if run.head_trained else 0
    return element * vocabulary * chunk_tokens + (element * hidden + 4) * run.tokens + head
