"""The fused head of TRL 1.16 and later: logits in tiles, recomputed in the backward pass."""

from __future__ import annotations

from qdeploy.plan.losses import LossRun

SUMMARY = "TRL's SFTTrainer since 1.16: logits in tiles of 4096 tokens and 32768 words"
TOKENS, WORDS = 4096, 32768


def loss_bytes(run: LossRun) -> int:
    """One tile in the compute type, and gradients of hidden states and head summed up in FP32.

    TRL, trl/kernels/chunked_logprob.py: the tile has its full width even for a smaller
    vocabulary. The hidden states of the counted positions are copied, eH a token, their gradient
    is 4H and its cast eH; the head's gradient, if it is trained, 4VH and its cast eVH. Eleven FP32
    numbers a token are statistics.
    """
    element, hidden = run.compute_bytes, run.hidden_size
    cast = element if element != 4 else 0
    tile = element * min(run.tokens, TOKENS) * WORDS
    states = (element + 4 + cast) * hidden * run.tokens
    head = (4 + cast) * hidden * run.vocabulary if run.head_trained else 0
    return tile + states + head + 44 * run.tokens
