"""LoRA: two matrices of rank r beside each linear layer of the blocks (arXiv 2106.09685)."""

from __future__ import annotations

from qdeploy.models.shape import ModelShape


def block_linears(shape: ModelShape) -> list[tuple[int, int]]:
    """(out_features, in_features) of the linear layers of one block."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_features = shape.heads * shape.head_dim
    kv_features = shape.kv_heads * shape.head_dim
    attention = [(q_features, hidden), (kv_features, hidden), (kv_features, hidden)]
    if _fused_qkv(shape):
        attention = [(q_features + 2 * kv_features, hidden)]
    gate_and_up = [(inner, hidden)] * (2 if shape.gated_mlp else 1)
    return [*attention, (hidden, q_features), *gate_and_up, (hidden, inner)]


def linear_parameters(shape: ModelShape) -> int:
    """Weights of all linear layers of all blocks, biases not counted."""
    return shape.layers * sum(out * into for out, into in block_linears(shape))


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Trainable parameters of LoRA of `rank` on all linear layers of all blocks: r (out + in)."""
    return shape.layers * sum(rank * (out + into) for out, into in block_linears(shape))


def _fused_qkv(shape: ModelShape) -> bool:
    # Learned positions mark GPT-2, the one known family with one linear for q, k and v.
    return shape.learned_positions
