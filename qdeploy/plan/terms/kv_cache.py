"""Key-value cache of serving, as engines with paged attention keep it (vLLM, arXiv 2309.06180).

- A layer keeps K (D + value width) numbers a token; tensor parallelism divides the K key-value
  heads, and repeats them where there are fewer than GPUs.
- Latent attention keeps the compressed form, kv_lora_rank + qk_rope_head_dim numbers a token and
  layer, whole on every GPU (arXiv 2405.04434, section 2.1.3; vllm/v1/kv_cache_interface.py,
  MLAAttentionSpec).
- Memory is given in blocks of 16 tokens. A windowed layer keeps the blocks that its window
  touches: those of window - 1 tokens and one more (the same file, SlidingWindowSpec).
"""

from __future__ import annotations

from qdeploy.models.shape import ModelShape

_BLOCK_TOKENS = 16


def kv_cache_bytes(
    shape: ModelShape, context: int, dtype_bytes: int = 2, *, tensor: int = 1
) -> int:
    """Cache of one request of `context` tokens on one of `tensor` GPUs."""
    windowed = _windowed_layers(shape)
    blocks = -(-context // _BLOCK_TOKENS)
    held = (shape.layers - windowed) * blocks
    if shape.sliding_window is not None:
        window = -(-(shape.sliding_window - 1) // _BLOCK_TOKENS) + 1
        held += windowed * min(blocks, window)
    return held * _BLOCK_TOKENS * _numbers(shape, tensor) * dtype_bytes


def _windowed_layers(shape: ModelShape) -> int:
    if shape.sliding_window is None:
        return 0
    every = shape.full_attention_every
    return shape.layers - (shape.layers // every if every > 1 else 0)


def _numbers(shape: ModelShape, tensor: int) -> int:
    """Numbers that one layer keeps for a token on one GPU."""
    if shape.kv_lora_rank is not None:
        return shape.kv_lora_rank + shape.qk_rope_head_dim
    return -(-shape.kv_heads // tensor) * (shape.head_dim + shape.value_dim)
