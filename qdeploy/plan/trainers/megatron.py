"""Megatron-LM with its fused kernels, counted as its authors count.

Korthikanti et al., arXiv 2205.05198, Equations 1 to 6, and compute_activation_memory of
megatron/training/theoretical_memory_usage.py: a block of s tokens, b sequences, h hidden, a heads
keeps sbh(34 + 5as/h) bytes; with tensor parallelism t sbh(10 + 24/t + 5as/(ht)), with sequence
parallelism too all of it divided by t; without the inside of attention sbh 34. As there,
statistics of norms are left out. From Megatron-Core come the cases that the paper has not:
- the attention matrix is three tensors with dropout (softmax, mask, output) and one without;
- a gated MLP keeps the joint output of gate and up and the product (fusions/fused_bias_swiglu.py),
  3F numbers; without a gate 2F;
- a flash kernel keeps a log-sum a head, and keys and values of their own number of heads; without
  one they are repeated to all heads (transformer/dot_product_attention.py);
- experts: a copy of the token for each of its experts, their first linear's output, the product
  that already has the router's weight in it, so that the experts' output is not kept
  (transformer/moe/experts.py, TEGroupedMLP); the router's probabilities in FP32, its map, a byte.
"""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers._limits import only_full_training, refuse

TRAITS = Traits(
    summary="Megatron-LM, counted as in arXiv 2205.05198",
    loss="vocab_parallel",
    recomputes=("block", "attention"),
)


def block(run: BlockRun) -> list[Saved]:
    """What one block keeps for its backward pass, for one token.

    Raises InputError for a model that Megatron has no block for, and for adapters.
    """
    _check(run)
    shape, bits = run.shape, 8 * run.compute_bytes
    dropout = shape.hidden_size if shape.residual_dropout else 0
    found = [
        Saved("input_norm.input", shape.hidden_size, 8 * run.residual_bytes),
        Saved("linear_qkv.input", shape.hidden_size, bits),
        *_attention(run),
        Saved("linear_proj.input", shape.heads * shape.value_dim, bits, split="tensor"),
        Saved("attention.dropout", dropout, 8),
        Saved("mlp_norm.input", shape.hidden_size, 8 * run.residual_bytes),
        Saved("mlp.input", shape.hidden_size, bits),
        *(_experts(run) if run.moe else _mlp(run, "mlp", shape.intermediate_size)),
        Saved("mlp.dropout", dropout, 8),
    ]
    return [saved for saved in found if saved.numbers]


def working_bytes(run: BlockRun) -> int:
    """Bytes a token of the gradients that are there together in one block's backward pass.

    Those of the first linear's output and of the residual; without a flash kernel at least that
    of the attention matrix, which is there when the MLP's are gone.
    """
    shape = run.shape
    width = shape.intermediate_size
    if run.moe:
        shared = shape.shared_expert_intermediate_size
        width = max(shape.experts_per_token * shape.expert_intermediate_size, shared)
    inner = _first_linear(run, width)
    if run.attention == "eager":
        inner = max(inner, shape.heads * run.keys)
    return run.compute_bytes * inner + run.residual_bytes * shape.hidden_size


def _attention(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    inside = run.recompute != "attention"
    repeated = run.attention == "eager" and inside
    kv_heads = shape.heads if repeated else shape.kv_heads
    parts = [
        ("q", shape.heads * shape.head_dim, bits),
        ("k", kv_heads * shape.head_dim, bits),
        ("v", kv_heads * shape.value_dim, bits),
    ]
    if shape.qk_norm:
        norms = (shape.heads + shape.kv_heads) * shape.head_dim
        parts.append(("qk_norm.input", norms, bits))
    if inside and run.attention != "eager":
        parts.append(("log_sum", shape.heads, 32))
    elif inside:
        matrix = shape.heads * run.keys
        dropped = matrix if shape.attention_dropout else 0
        parts += [("softmax", matrix, bits), ("dropout", dropped, 8), ("dropped", dropped, bits)]
    return [Saved(f"attention.{name}", n, size, split="tensor") for name, n, size in parts]


def _mlp(run: BlockRun, name: str, width: int, copies: int = 1) -> list[Saved]:
    """An MLP that each token passes `copies` times."""
    bits = 8 * run.compute_bytes
    return [
        Saved(f"{name}.linear_fc1", copies * _first_linear(run, width), bits, split="tensor"),
        Saved(f"{name}.linear_fc2.input", copies * width, bits, split="tensor"),
    ]


def _experts(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    copies = shape.experts_per_token
    gate = shape.hidden_size if shape.shared_expert_gate else 0
    return [
        Saved("router.probabilities", shape.experts, 32),
        Saved("router.map", shape.experts, 8),
        Saved("experts.input", copies * shape.hidden_size, bits, split="tensor"),
        Saved("experts.weights", copies, 32, split="tensor"),
        *_mlp(run, "experts", shape.expert_intermediate_size, copies),
        *_mlp(run, "shared_experts", shape.shared_expert_intermediate_size),
        Saved("shared_experts.output", gate, bits),
    ]


def _first_linear(run: BlockRun, width: int) -> int:
    return (2 if run.shape.gated_mlp else 1) * width


def _check(run: BlockRun) -> None:
    shape = run.shape
    only_full_training("megatron", run, ("attention",))
    refuse(
        "megatron",
        run,
        [
            (shape.norms_per_block != 2, f"{shape.norms_per_block} norms in a block"),
            (shape.parallel_residual, "attention beside the MLP"),
            (shape.kv_lora_rank is not None, "count for latent attention here"),
            (shape.attention_softcap, "cap on attention scores"),
            (shape.alibi, "ALiBi"),
        ],
    )
