"""The sizes of a decoder-only language model, and its parameter counts."""

from __future__ import annotations

from pydantic import Field, model_validator

from qdeploy.core.schema import Schema


class ModelShape(Schema):
    """Sizes of a decoder-only transformer; all counts are exact for the named families.

    H hidden_size, L layers, A heads, K kv_heads, D head_dim, F intermediate_size, V vocab_size.
    """

    name: str
    family: str
    layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_positions: int = Field(gt=0)
    gated_mlp: bool = True
    """Gate, up and down projection (3HF) instead of up and down (2HF)."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """A norm of size D on queries and one on keys."""
    norms_per_block: int = 2
    norm_bias: bool = False
    learned_positions: bool = False
    sliding_window: int | None = None
    full_attention_every: int = 1
    """With a sliding window: every n-th layer attends to everything (1: the window is everywhere,
    as in Mistral; 6: five windowed layers, then a full one, as in Gemma 3)."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelShape:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} attention heads do not divide into {self.kv_heads} key-value heads"
            )
        return self

    @property
    def attention_parameters(self) -> int:
        """Parameters of one block's attention: q, k, v, o, their biases, q and k norms."""
        q_features = self.heads * self.head_dim
        kv_features = self.kv_heads * self.head_dim
        weights = self.hidden_size * (2 * q_features + 2 * kv_features)
        qkv_bias = (q_features + 2 * kv_features) if self.qkv_bias else 0
        output_bias = self.hidden_size if self.output_bias else 0
        qk_norm = 2 * self.head_dim if self.qk_norm else 0
        return weights + qkv_bias + output_bias + qk_norm

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one block's MLP."""
        inner = 2 if self.gated_mlp else 1
        weights = (inner + 1) * self.hidden_size * self.intermediate_size
        bias = inner * self.intermediate_size + self.hidden_size if self.mlp_bias else 0
        return weights + bias

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden_size * (2 if self.norm_bias else 1)

    @property
    def block_parameters(self) -> int:
        """Parameters of one decoder block."""
        norms = self.norms_per_block * self.norm_parameters
        return self.attention_parameters + self.mlp_parameters + norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        positions = self.max_positions if self.learned_positions else 0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head that are not shared with the embedding."""
        return 0 if self.tied_embeddings else self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters of the model, shared ones counted once."""
        blocks = self.layers * self.block_parameters
        return blocks + self.embedding_parameters + self.head_parameters + self.norm_parameters

    def kv_cache_bytes_per_token(self, dtype_bytes: int = 2) -> int:
        """Bytes that one token adds to the key-value cache: 2 L K D x dtype (windows ignored)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_bytes
