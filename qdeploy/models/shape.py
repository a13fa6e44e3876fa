"""The sizes of a language model, and its parameter counts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from qdeploy.core.schema import Schema
from qdeploy.models.linear import Linear, mlp, named, weights_and_biases


class ModelShape(Schema):
    """Sizes of a transformer; all counts are exact for the families of `qdeploy.models.families`.

    H hidden_size, L layers, A heads, K kv_heads, D head_dim, F intermediate_size, V vocab_size.
    The defaults describe LLaMA's block.
    """

    name: str
    family: str
    layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    """Width of a query and of a key in one head."""
    intermediate_size: int = Field(gt=0)
    """Width of the dense MLP, of one of its two halves where gate and up are one linear."""
    vocab_size: int = Field(gt=0)
    max_positions: int = Field(gt=0)
    task: Literal["causal_lm", "classification"] = "causal_lm"
    """classification: one row of `labels` logits a sequence, no logits over the vocabulary."""
    labels: int = Field(default=0, ge=0)
    causal: bool = True
    linear_names: tuple[str, ...] = ()
    """Module names of the attention's linears, then of the dense MLP's; empty: LLaMA's."""

    gated_mlp: bool = True
    """Gate, up and down projection (3HF) instead of up and down (2HF)."""
    fused_qkv: bool = False
    """One linear for queries, keys and values."""
    fused_gate_up: bool = False
    """One linear for gate and up."""
    activation: str = "silu"
    """silu, gelu, gelu_tanh (the approximation, as one kernel), gelu_new (the same as separate
    operations), relu or relu2."""
    parallel_residual: bool = False
    """Attention and MLP read the same residual."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    head_bias: bool = False

    norm: Literal["rms", "layer"] = "rms"
    norm_weight: bool = True
    norm_bias: bool = False
    norms_per_block: int = Field(default=2, ge=0)
    qk_norm: bool = False
    """A norm of size D on queries and one on keys."""
    qk_norm_whole: bool = False
    """A norm over all queries (AD) and one over all keys (KD) instead of one per head."""
    embedding_norm: bool = False
    final_norm: bool = True

    learned_positions: bool = False
    position_offset: int = Field(default=0, ge=0)
    """Rows of the position table before the first position."""
    alibi: bool = False
    rotary_dim: int | None = Field(default=None, ge=0)
    """Rotated part of a head; None: the whole head, unless positions are learned or ALiBi."""
    token_types: int = Field(default=0, ge=0)
    pooler: bool = False

    sliding_window: int | None = Field(default=None, gt=0)
    full_attention_every: int = Field(default=1, gt=0)
    """With a sliding window: every n-th layer attends to everything (1: the window is everywhere,
    as in Mistral; 6: five windowed layers, then a full one, as in Gemma 3)."""
    attention_softcap: bool = False
    logit_softcap: bool = False
    attention_sinks: bool = False
    """One learned logit a head beside the scores."""

    experts: int = Field(default=0, ge=0)
    experts_per_token: int = Field(default=0, ge=0)
    expert_intermediate_size: int = Field(default=0, ge=0)
    shared_expert_intermediate_size: int = Field(default=0, ge=0)
    """Width of all shared experts together."""
    shared_expert_gate: bool = False
    expert_bias: bool = False
    """Biases on the experts and on the router."""
    dense_layers: int = Field(default=0, ge=0)
    """The first layers that have a dense MLP although the model has experts."""
    moe_every: int = Field(default=1, gt=0)
    """Every n-th layer has experts."""

    q_lora_rank: int | None = Field(default=None, gt=0)
    kv_lora_rank: int | None = Field(default=None, gt=0)
    """Width of the compressed keys and values; given: multi-head latent attention."""
    qk_rope_head_dim: int = Field(default=0, ge=0)
    v_head_dim: int | None = Field(default=None, gt=0)
    """Width of a value in one head; None: as a key."""

    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    residual_dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _sizes_agree(self) -> ModelShape:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} attention heads do not divide into {self.kv_heads} key-value heads"
            )
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"a token cannot go to {self.experts_per_token} of {self.experts} experts"
            )
        if self.experts and not (self.experts_per_token and self.expert_intermediate_size):
            raise ValueError(
                f"{self.experts} experts need experts_per_token and expert_intermediate_size"
            )
        if (self.task == "classification") != (self.labels > 0):
            raise ValueError(f"a {self.task} model has {self.labels} labels")
        if self.qk_rope_head_dim > self.head_dim or (self.rotary_dim or 0) > self.head_dim:
            raise ValueError(f"the rotated part of a head is wider than head_dim {self.head_dim}")
        linears = len(self._attention()) + (2 if self.fused_gate_up or not self.gated_mlp else 3)
        if len(self.linear_names) not in (0, linears):
            raise ValueError(
                f"linear_names names {len(self.linear_names)} linears, its block has {linears}"
            )
        return self

    @property
    def value_dim(self) -> int:
        """Width of a value in one head."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def attention_linears(self) -> list[Linear]:
        """Linears of one block's attention, in the order in which they run."""
        linears = self._attention()
        return named(linears, self.linear_names[: len(linears)])

    @property
    def mlp_linears(self) -> list[Linear]:
        """Linears of the dense MLP of one block, in the order in which they run."""
        linears = self._mlp(self.intermediate_size, bias=self.mlp_bias, fused=self.fused_gate_up)
        return named(linears, self.linear_names[len(self._attention()) :])

    @property
    def expert_linears(self) -> list[Linear]:
        """One routed expert as linears, none without experts.

        transformers keeps all experts of a layer in two tensors, `gate_up_proj` and `down_proj`.
        """
        return self._mlp(self.expert_intermediate_size, bias=self.expert_bias, fused=True)

    @property
    def shared_expert_linears(self) -> list[Linear]:
        """Linears of the shared experts together, each as wide as all of them; none without."""
        width = self.shared_expert_intermediate_size
        return self._mlp(width, bias=self.expert_bias, fused=self.fused_gate_up)

    @property
    def plain_linears(self) -> list[Linear]:
        """Linears of attention, dense MLP and shared experts: all but those of routed experts."""
        return [*self.attention_linears, *self.mlp_linears, *self.shared_expert_linears]

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of block `layer`, from 0, is a mixture of experts."""
        if not self.experts or layer < self.dense_layers:
            return False
        return (layer + 1) % self.moe_every == 0

    @property
    def moe_layers(self) -> int:
        """Blocks that have experts."""
        return sum(self.has_experts(layer) for layer in range(self.layers))

    @property
    def attention_parameters(self) -> int:
        """Parameters of one block's attention: its linears, norms and sinks."""
        norms = 0
        if self.kv_lora_rank:
            norms = self.kv_lora_rank + (self.q_lora_rank or 0)
        elif self.qk_norm_whole:
            norms = (self.heads + self.kv_heads) * self.head_dim
        elif self.qk_norm:
            norms = 2 * self.head_dim
        sinks = self.heads if self.attention_sinks else 0
        return weights_and_biases(self.attention_linears) + norms + sinks

    @property
    def mlp_parameters(self) -> int:
        """Parameters of the dense MLP of one block."""
        return weights_and_biases(self.mlp_linears)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return weights_and_biases(self.expert_linears)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden_size * (int(self.norm_weight) + int(self.norm_bias))

    @property
    def dense_block_parameters(self) -> int:
        """Parameters of one block with a dense MLP."""
        return self._block_parameters(self.mlp_parameters)

    @property
    def moe_block_parameters(self) -> int:
        """Parameters of one block with experts: all of them, the shared ones, the router."""
        if not self.experts:
            return 0
        router = self.experts * (self.hidden_size + int(self.expert_bias))
        gate = self.hidden_size if self.shared_expert_gate else 0
        shared = weights_and_biases(self.shared_expert_linears)
        return self._block_parameters(
            self.experts * self.expert_parameters + router + shared + gate
        )

    @property
    def block_parameters(self) -> int:
        """Parameters of one block, of the kind that most layers are."""
        mostly_experts = 2 * self.moe_layers > self.layers
        return self.moe_block_parameters if mostly_experts else self.dense_block_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings of tokens, of learned positions and of token types."""
        positions = self.max_positions + self.position_offset if self.learned_positions else 0
        return (self.vocab_size + positions + self.token_types) * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head that are not shared with the embedding, and its bias."""
        rows = self.labels if self.task == "classification" else self.vocab_size
        weight = 0 if self.tied_embeddings else rows * self.hidden_size
        return weight + (rows if self.head_bias else 0)

    @property
    def parameters(self) -> int:
        """All parameters of the model, shared ones counted once."""
        dense = (self.layers - self.moe_layers) * self.dense_block_parameters
        norms = (int(self.embedding_norm) + int(self.final_norm)) * self.norm_parameters
        pooler = self.hidden_size * (self.hidden_size + 1) if self.pooler else 0
        outside = self.embedding_parameters + norms + pooler + self.head_parameters
        return dense + self.moe_layers * self.moe_block_parameters + outside

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the experts it is not routed to."""
        idle = self.experts - self.experts_per_token
        return self.parameters - self.moe_layers * idle * self.expert_parameters

    def kv_cache_bytes_per_token(self, dtype_bytes: int = 2) -> int:
        """Bytes that one token adds to the key-value cache (windows ignored).

        L K (D + value width) x dtype, as transformers keeps it: latent attention too keeps the
        expanded keys and values there.
        """
        return self.layers * self.kv_heads * (self.head_dim + self.value_dim) * dtype_bytes

    def _block_parameters(self, mlp: int) -> int:
        return self.attention_parameters + mlp + self.norms_per_block * self.norm_parameters

    def _attention(self) -> list[Linear]:
        if self.kv_lora_rank is not None:
            return self._latent_attention(self.kv_lora_rank)
        hidden, q_features = self.hidden_size, self.heads * self.head_dim
        k_features, v_features = self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        out = Linear("o_proj", hidden, self.heads * self.value_dim, self.output_bias)
        parts = {"q_proj": q_features, "k_proj": k_features, "v_proj": v_features}
        if self.fused_qkv:
            parts = {"qkv_proj": sum(parts.values())}
        return [*(Linear(name, n, hidden, self.qkv_bias) for name, n in parts.items()), out]

    def _latent_attention(self, rank: int) -> list[Linear]:
        """Multi-head latent attention, DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""
        hidden, q_rank = self.hidden_size, self.q_lora_rank
        q_features = self.heads * self.head_dim
        expanded = self.heads * (self.head_dim - self.qk_rope_head_dim + self.value_dim)
        queries = [Linear("q_proj", q_features, hidden, bias=False)]
        if q_rank is not None:
            queries = [
                Linear("q_a_proj", q_rank, hidden, self.qkv_bias),
                Linear("q_b_proj", q_features, q_rank, bias=False),
            ]
        return [
            *queries,
            Linear("kv_a_proj_with_mqa", rank + self.qk_rope_head_dim, hidden, self.qkv_bias),
            Linear("kv_b_proj", expanded, rank, bias=False),
            Linear("o_proj", hidden, self.heads * self.value_dim, self.output_bias),
        ]

    def _mlp(self, width: int, *, bias: bool, fused: bool) -> list[Linear]:
        return mlp(self.hidden_size, width, gated=self.gated_mlp, fused=fused, bias=bias)
