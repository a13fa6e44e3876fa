"""litgpt's fine-tuning loss: the head in chunks of 128 positions, then cross-entropy by chunk."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "FP32 logits of litgpt's chunked head, and their cross-entropy by chunk"
CHUNK = 128


def loss_bytes(run: LossRun) -> int:
    """FP32 logits, 4V a token, and either log-softmax or its gradient, 4V; 8V of one chunk more.

    The head runs on 128 positions at a time (finetune/lora.py, lm_head_chunk_size) and Lightning
    Fabric turns what a model returns into FP32 (plugins/precision/half.py, convert_output). The
    list of logits lives until the backward pass is over. That frees one chunk's log-softmax as it
    makes its gradient, out of another one (litgpt/utils.py, chunked_cross_entropy).
    """
    chunk = min(run.tokens, CHUNK * run.sequences)
    return 8 * run.vocabulary * (run.tokens + chunk)
