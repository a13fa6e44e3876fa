"""Lightning-AI/litgpt: its own GPT, all of it in BF16 (`--precision bf16-true`).

Counted from litgpt 0.2.0 and 0.5.12 (model.py, lora.py, adapter.py, adapter_v2.py), which keep
the same but for a trained norm. A token and block, e bytes, H hidden size, Q and K features of
queries and of keys, A heads, F intermediate size:
- RMSNorm in single FP32 operations: 4H + 4, and 4H for the gradient of its weight. LayerNorm: its
  input, which norms of parallel branches share, and two statistics.
- attention: queries and keys after the rotation, keys and values repeated to all heads, 3eQ. With
  as many key-value heads as heads, values are a view that holds all of the fused linear's output:
  2eQ + 3eQ. The output eQ and 4A; the heads are put side by side in a copy, kept for the output
  projection's weight or adapter.
- MLP: with a gate its two outputs and the activation, 3eF; without, the activation's input, eF.
- LoRA on the fused linear has one dropout and one A matrix for all it adapts. What it adds to
  queries and values goes through index_copy, which keeps its source, e(Q + K); adapting all three
  needs no index_copy. A model that has one fused linear itself: queries and values, as by default.
- LLaMA-Adapter (a trained `gating_factor`): attention over 10 prefix tokens, eQ + 4A and its bias.
  Version 2 (a trained `adapter_scale`): every linear's output before the scale.
- no dropout but LoRA's, whatever the model's configuration says.
- bitsandbytes keeps the input of each 4-bit linear, although no gradient needs it (0.42, which
  litgpt asks for: autograd/_functions.py, MatMul4Bit).
"""

from __future__ import annotations

from dataclasses import replace

from qdeploy.plan.saved import NORMS, BlockRun, Saved, Split
from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers._limits import refuse
from qdeploy.plan.trainers._one_type import adapter, linear_input, rms_norm

TRAITS = Traits(
    summary="litgpt's GPT in pure BF16, with LoRA and LLaMA-Adapter",
    loss="lm_head_chunks",
    quantizes_head=True,
    whole_gradients=True,
)

_PREFIX = 10
"""litgpt/adapter.py, adapter_prompt_length."""


def block(run: BlockRun) -> list[Saved]:
    """What one block keeps for its backward pass, for one token.

    Raises InputError for a model that litgpt does not have or that was not counted.
    """
    _check(run)
    return [*_norms(run), *_attention(run), *_mlp(run)]


def working_bytes(run: BlockRun) -> int:
    """Bytes a token of the gradients that are there together in one block's backward pass."""
    shape = run.shape
    width = shape.intermediate_size * (2 if shape.gated_mlp else 1)
    return run.compute_bytes * (width + shape.hidden_size)


def _norms(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    names, hidden = NORMS[: shape.norms_per_block], shape.hidden_size
    if shape.norm == "rms":
        found = [saved for name in names for saved in rms_norm(name, hidden, 1, "sequence")]
    else:
        inputs = 1 if shape.parallel_residual else len(names)
        found = [
            Saved("norms.input", inputs * hidden, bits),
            Saved("norms.statistics", 2 * len(names), 32),
        ]
    inner = [linear.name for linear in shape.attention_linears][:-1]
    up = [linear.name for linear in shape.mlp_linears][:-1]
    if len(names) == 1:
        return [*found, *_input(run, [*inner, *up], hidden, "sequence")]
    return [
        *found,
        *_input(run, inner, hidden, "sequence"),
        *_input(run, up, hidden, "sequence"),
    ]


def _attention(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    *inner, out = [linear.name for linear in shape.attention_linears]
    found = []
    if shape.qk_norm_whole:
        found += rms_norm("q_norm", queries, 1, "tensor")
        found += rms_norm("k_norm", keys, 1, "tensor")
    elif shape.qk_norm:
        found += rms_norm("q_norm", shape.head_dim, shape.heads, "tensor")
        found += rms_norm("k_norm", shape.head_dim, shape.kv_heads, "tensor")
    repeated = shape.kv_heads < shape.heads
    values = queries if repeated else queries + 2 * keys
    found += [
        Saved("attention.q", queries, bits, split="tensor"),
        Saved("attention.k", queries, bits, split="tensor"),
        Saved("attention.v", values, bits, split="tensor"),
        Saved("attention.out", queries, bits, split="tensor"),
        Saved("attention.log_sum", shape.heads, 32, split="tensor"),
    ]
    if shape.sliding_window is not None:
        found.append(Saved("attention.bias", run.keys, bits))
    found += _qkv_adapter(run, inner)
    found += _input(run, [out], queries, "tensor")
    found += adapter(run, [out], queries, split="tensor")
    found += _scaled(run, "qkv", queries + 2 * keys, "tensor")
    return [*found, *_scaled(run, "proj", shape.hidden_size, "sequence"), *_prefix(run)]


def _qkv_adapter(run: BlockRun, inner: list[str]) -> list[Saved]:
    shape = run.shape
    keys = shape.kv_heads * shape.head_dim
    parts = dict(zip(("q", "k", "v"), (shape.heads * shape.head_dim, keys, keys), strict=True))
    if shape.fused_qkv:
        enabled = ["q", "v"] if run.adapted.intersection(inner) else []
    else:
        enabled = [part for part, name in zip(parts, inner, strict=True) if name in run.adapted]
    if not enabled:
        return []
    # One adapter of n times the rank, kept if the fused linear is adapted at all.
    served = replace(run, lora_rank=run.lora_rank * len(enabled), adapted=frozenset({inner[0]}))
    found = [
        replace(saved, needs=frozenset(inner))
        for saved in adapter(served, inner[:1], shape.hidden_size)
    ]
    if len(enabled) == len(parts):
        return found
    added = sum(parts[part] for part in enabled)
    needs = frozenset(inner)
    return [
        *found,
        Saved("qkv.lora_B.output", added, 8 * run.compute_bytes, needs, split="tensor"),
    ]


def _prefix(run: BlockRun) -> list[Saved]:
    """LLaMA-Adapter's attention over its prefix."""
    if run.trained is None or "gating_factor" not in run.trained:
        return []
    shape, bits = run.shape, 8 * run.compute_bytes
    return [
        Saved("adapter.out", shape.heads * shape.head_dim, bits, split="tensor"),
        Saved("adapter.log_sum", shape.heads, 32, split="tensor"),
        Saved("adapter.bias", _PREFIX, bits),
    ]


def _scaled(run: BlockRun, name: str, numbers: int, split: Split) -> list[Saved]:
    """A linear's output before LLaMA-Adapter v2 scales it."""
    if run.trained is None or "adapter_scale" not in run.trained:
        return []
    return [Saved(f"{name}.unscaled", numbers, 8 * run.compute_bytes, split=split)]


def _mlp(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    *up, down = [linear.name for linear in shape.mlp_linears]
    width = shape.intermediate_size
    names = ("fc_1", "activation", "fc_2") if shape.gated_mlp else ("fc",)
    found = [Saved(f"mlp.{name}", width, bits, split="tensor") for name in names]
    up = up * 2 if shape.gated_mlp and shape.fused_gate_up else up  # two linears in litgpt
    for name in up:
        found += adapter(run, [name], shape.hidden_size)
    found += _input(run, [down], width, "tensor")
    found += adapter(run, [down], width, split="tensor")
    found += _scaled(run, "mlp", width * len(up), "tensor")
    return [*found, *_scaled(run, "mlp.proj", shape.hidden_size, "sequence")]


def _input(run: BlockRun, names: list[str], numbers: int, split: Split) -> list[Saved]:
    if run.quantized_base:
        return [Saved(f"{names[0]}.input", numbers, 8 * run.compute_bytes, split=split)]
    return linear_input(run, names, numbers, split=split)


def _check(run: BlockRun) -> None:
    shape = run.shape
    refuse(
        "litgpt",
        run,
        [
            (run.compute_bytes != 2 or run.autocast, "count for anything but pure 16-bit training"),
            (run.recompute != "none", f"recomputation of {run.recompute}"),
            (run.moe, "count for a mixture of experts"),
            (run.attention == "eager", "attention but scaled_dot_product_attention"),
            (shape.attention_softcap, "count for soft-capped attention scores"),
            (shape.kv_lora_rank is not None, "count for latent attention"),
            (shape.learned_positions or shape.alibi, "positions but rotary ones"),
        ],
    )
