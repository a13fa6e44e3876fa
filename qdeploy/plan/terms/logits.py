"""Logits and the chain of the cross-entropy loss, per token of the micro-batch.

- hf: the stock loss of transformers. 16-bit: logits 2, their FP32 copy 4, log-softmax 4, FP32
  gradient 4, 16-bit gradient 2: 16 V (agrees with the slope of measured peaks of
  Qwen2.5-0.5B and 1.5B, DaoyuanLi2816/can-i-finetune-this). FP32: logits, log-softmax and
  gradient, 12 V.
- chunked: logits and their gradient whole, 2eV; the FP32 chain (12 V) in one of 8 chunks
  (torchtune CEWithChunkedOutputLoss).
- liger: fused linear and loss in chunks of tokens (Liger-Kernel, ops/fused_linear_cross_entropy):
  with n = ceil(V/H) chunks, c = the next power of two of tokens/n, c(e+4)V for a chunk, eH a token
  for the input's gradient, and the head's gradient eVH if it is trained.
"""

from __future__ import annotations

from qdeploy.plan.job import Job

_CHUNKS = 8


def logits_bytes(job: Job) -> int:
    """Logits and loss chain of one micro-batch."""
    if job.request.loss == "liger":
        return _liger_bytes(job)
    element, vocabulary = job.compute_bytes, job.shape.vocab_size
    if job.request.loss == "chunked":
        chain = 12 * -(-job.tokens // _CHUNKS)
        return vocabulary * (2 * element * job.tokens + chain)
    return vocabulary * job.tokens * (16 if element == 2 else 12)


def _liger_bytes(job: Job) -> int:
    element, vocabulary, hidden = job.compute_bytes, job.shape.vocab_size, job.shape.hidden_size
    chunks = -(-vocabulary // hidden)
    chunk_tokens = min(job.tokens, 1 << (-(-job.tokens // chunks) - 1).bit_length())
    head_gradient = element * vocabulary * hidden if job.request.peft is None else 0
    return chunk_tokens * (element + 4) * vocabulary + element * hidden * job.tokens + head_gradient
