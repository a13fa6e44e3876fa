"""Whole logits, their cross-entropy chunk by chunk: torchtune's CEWithChunkedOutputLoss."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "logits whole, their FP32 cross-entropy in 8 chunks"
CHUNKS = 8


def loss_bytes(run: LossRun) -> int:
    """Logits and their gradient, 2eV a token, and the FP32 chain, 12 V, of one chunk."""
    chunk = -(-run.tokens // CHUNKS)
    return run.vocabulary * (2 * run.compute_bytes * run.tokens + 12 * chunk)
