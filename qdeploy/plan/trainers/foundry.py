"""llm-foundry's MPT, trained by Composer.

Counted from mosaicml/llm-foundry 0.4, models/layers/blocks.py, attention.py, ffn.py, norm.py. FSDP
casts weights and the inputs of the model to 16 bits (MixedPrecision DEFAULT and PURE), and
low_precision_layernorm stays there under autocast, so that everything but the statistics is in 16
bits. A token and block, H hidden size, Q and K features of queries and of keys, A heads, F
intermediate size, e bytes:
- two LayerNorms: input and output, 2eH, and two FP32 statistics, 8;
- attention: q, k, v and the output, e(2Q + 2K) + 4A. attn_impl flash gathers the tokens that are
  not padding and puts the output back, which keeps the output twice, eQ more, and the gathered
  indices, 24 (flash_attn/bert_padding.py); it repeats keys and values to all heads, as attn_impl
  torch does. That one keeps the probabilities in FP32 and in e and a causal mask: (4 + e)AS + S.
- MLP with the exact GELU: its input and output, 2eF.
`sdpa` stands for one dense fused kernel, which attn_impl triton was.
"""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers._limits import only_full_training, refuse

TRAITS = Traits(
    summary="llm-foundry's MPT with Composer and FSDP",
    loss="fused",
    autocasts=True,
)


def block(run: BlockRun) -> list[Saved]:
    """What one block keeps for its backward pass, for one token.

    Raises InputError for a model that is not built like MPT, and for adapters.
    """
    _check(run)
    hidden, bits = run.shape.hidden_size, 8 * run.compute_bytes
    width = run.shape.intermediate_size
    norms = [
        saved
        for name in ("norm_1", "norm_2")
        for saved in (
            Saved(f"{name}.input", hidden, 8 * run.residual_bytes),
            Saved(f"{name}.statistics", 2, 32),
            Saved(f"{name}.output", hidden, bits),
        )
    ]
    found = [
        *norms,
        *_attention(run),
        Saved("ffn.up_proj", width, bits, split="tensor"),
        Saved("ffn.down_proj.input", width, bits, split="tensor"),
    ]
    if run.shape.residual_dropout:
        found += [Saved(f"{name}.dropout", hidden, 8) for name in ("attn", "ffn")]
    return found


def working_bytes(run: BlockRun) -> int:
    """Bytes a token of the gradients that are there together in one block's backward pass.

    Those of the MLP's inside and of the residual; with attn_impl torch at least those of the
    probabilities in FP32 and in the compute type, which are there when the MLP's are gone.
    """
    shape = run.shape
    inner = run.compute_bytes * shape.intermediate_size
    if run.attention == "eager":
        inner = max(inner, 4 * shape.heads * run.keys)
    return inner + run.residual_bytes * shape.hidden_size


def _attention(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    features = shape.heads * shape.head_dim
    kv_heads = shape.kv_heads if run.attention == "sdpa" else shape.heads
    parts = [
        ("q", features, bits),
        ("k", kv_heads * shape.head_dim, bits),
        ("v", kv_heads * shape.head_dim, bits),
        ("out_proj.input", features, bits),
    ]
    if run.attention == "eager":
        matrix = shape.heads * run.keys
        parts += [("probabilities", matrix, 32), ("mask", run.keys, 8)]
        if run.compute_bytes != 4:
            parts.append(("cast", matrix, bits))
    else:
        parts.append(("log_sum", shape.heads, 32))
    if run.attention == "flash":
        parts += [("unpadded", features, bits), ("indices", 3, 64)]
    return [Saved(f"attn.{name}", n, size, split="tensor") for name, n, size in parts]


def _check(run: BlockRun) -> None:
    shape = run.shape
    only_full_training("foundry", run, ())
    refuse(
        "foundry",
        run,
        [
            (run.moe, "mixture of experts in MPT"),
            (shape.norm != "layer", "norm but LayerNorm in MPT"),
            (shape.norms_per_block != 2, f"{shape.norms_per_block} norms in a block"),
            (shape.gated_mlp or shape.activation != "gelu", "MLP but GELU without a gate"),
            (shape.parallel_residual, "attention beside the MLP"),
            (shape.qk_norm or shape.qk_norm_whole, "norms of queries and keys"),
            (not (shape.learned_positions or shape.alibi), "rotary positions in this count"),
            (shape.attention_dropout > 0, "attention dropout in this count"),
        ],
    )
