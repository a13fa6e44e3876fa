"""meta-pytorch/torchtune: its own transformer, all of it in BF16 (`dtype=bf16`).

Counted from torchtune 0.4.0 and 0.6.1 (modules/transformer.py, attention.py, feed_forward.py,
rms_norm.py, peft/lora.py). A token and block, e bytes, H hidden size, Q features of queries, A
heads, F intermediate size:
- RMSNorm on an FP32 copy of its input, 4H + 4, and 4H for the gradient of its scale; 0.4 kept
  that in BF16.
- attention: queries, keys and values repeated to all heads, and the output, 4eQ, and 4A: with a
  causal mask, or flex attention over packed sequences. A norm of queries and keys leaves another
  memory layout, which costs a copy of the output before the output projection.
- MLP: gate, activation, up, 3eF, and their product for the weight of the down projection.
- LoRA on each linear for itself: with dropout a mask and the dropped input.
- torchao's 4-bit linear keeps nothing (NF4Tensor, LinearNF4).
- compiled, by the min-cut partitioner of AOTAutograd: the block's input and the output
  projection, 2eH, instead of FP32 copies and normalised values; no activation; 8 for two norms.
"""

from __future__ import annotations

from qdeploy.plan.saved import NORMS, BlockRun, Saved
from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers._limits import refuse
from qdeploy.plan.trainers._one_type import adapter, linear_input, rms_norm

TRAITS = Traits(
    summary="torchtune's transformer in pure BF16, with LoRA and QLoRA",
    loss="chunked",
)


def block(run: BlockRun) -> list[Saved]:
    """What one block keeps for its backward pass, for one token.

    Raises InputError for a model that torchtune does not have or that was not counted.
    """
    _check(run)
    return [*_norms(run), *_attention(run), *_mlp(run)]


def working_bytes(run: BlockRun) -> int:
    """Bytes a token of the gradients that are there together in one block's backward pass."""
    shape = run.shape
    return run.compute_bytes * (2 * shape.intermediate_size + shape.hidden_size)


def _norms(run: BlockRun) -> list[Saved]:
    shape, hidden = run.shape, run.shape.hidden_size
    names = NORMS[: shape.norms_per_block]
    if run.compiled:
        found = [
            Saved("input", hidden, 8 * run.residual_bytes),
            Saved("output_proj.output", hidden, 8 * run.compute_bytes),
            Saved("norms.rsqrt", len(names), 32),
        ]
    else:
        found = [saved for name in names for saved in rms_norm(name, hidden, 1, "sequence")]
    inner = [linear.name for linear in shape.attention_linears][:-1]
    up = [linear.name for linear in shape.mlp_linears][:-1]
    return [*found, *linear_input(run, inner, hidden), *linear_input(run, up, hidden)]


def _attention(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    queries = shape.heads * shape.head_dim
    *inner, out = [linear.name for linear in shape.attention_linears]
    found = [
        Saved(f"attention.{name}", queries, bits, split="tensor") for name in ("q", "k", "v", "out")
    ]
    found.append(Saved("attention.log_sum", shape.heads, 32, split="tensor"))
    for name in inner:
        found += adapter(run, [name], shape.hidden_size)
    found += adapter(run, [out], queries, split="tensor")
    if shape.qk_norm:
        for name, heads in (("q_norm", shape.heads), ("k_norm", shape.kv_heads)):
            found += _head_norm(run, name, heads)
        found += linear_input(run, [out], queries, split="tensor")
    return found


def _head_norm(run: BlockRun, name: str, heads: int) -> list[Saved]:
    width = run.shape.head_dim
    if not run.compiled:
        return rms_norm(name, width, heads, "tensor")
    return [
        Saved(f"{name}.input", heads * width, 8 * run.compute_bytes, split="tensor"),
        Saved(f"{name}.rsqrt", heads, 32, split="tensor"),
    ]


def _mlp(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    *up, down = [linear.name for linear in shape.mlp_linears]
    width = shape.intermediate_size
    names = ("w1", "w3") if run.compiled else ("w1", "activation", "w3")
    found = [Saved(f"mlp.{name}", width, bits, split="tensor") for name in names]
    for name in up:
        found += adapter(run, [name], shape.hidden_size)
    found += linear_input(run, [down], width, split="tensor")
    return [*found, *adapter(run, [down], width, split="tensor")]


def _check(run: BlockRun) -> None:
    shape = run.shape
    refuse(
        "torchtune",
        run,
        [
            (run.compute_bytes != 2 or run.autocast, "count for anything but pure 16-bit training"),
            (run.recompute != "none", f"recomputation of {run.recompute}"),
            (run.moe, "count for a mixture of experts"),
            (run.attention == "eager", "attention but scaled_dot_product_attention"),
            (shape.attention_softcap, "count for soft-capped attention scores"),
            (shape.kv_lora_rank is not None, "latent attention"),
            (shape.norm != "rms" or not shape.norm_weight, "norm but RMSNorm with a scale"),
            (shape.qk_norm_whole, "norms over all queries and keys"),
            (shape.parallel_residual, "attention beside the MLP"),
            (not shape.gated_mlp, "MLP without a gate"),
            (shape.learned_positions or shape.alibi, "positions but rotary ones"),
        ],
    )
