"""torchtitan's Llama 3, trained with FSDP2, whose mixed precision casts weights, not activations.

Counted from pytorch/torchtitan of December 2024: models/llama/model.py and models/norms.py, with
_save_list of parallelisms/parallelize_llama.py for selective checkpointing. A token and block, H
hidden size, Q and K features of queries and of keys, A heads, F intermediate size, e bytes:
- as written: two RMSNorms in FP32, 4H + 4 each, their values before the weight and their outputs,
  4eH; q, k and v with keys and values repeated to all heads and the output, 4eQ, a log-sum, 4A;
  gate, up, silu and product, 4eF.
- compiled: the norms' outputs, the block's input and the output projection, 4eH, reciprocals of
  the norms, 8; attention as above; gate, up and product, 3eF.
- selective op checkpointing: the block's input, attention's output, and of the matrix products
  every second one: q, v, gate and down projection; compiled without the last, which no gradient
  needs. In all: e(2H + 2Q + K + F) + 4A.

With tensor parallelism a linear keeps its gathered input whole (PrepareModuleInput to Replicate).
"""

from __future__ import annotations

from qdeploy.plan.saved import BlockRun, Saved
from qdeploy.plan.trainers import Traits
from qdeploy.plan.trainers._limits import only_full_training, refuse

TRAITS = Traits(
    summary="torchtitan's Llama 3 with FSDP2",
    loss="upcast",
    parallel_loss="loss_parallel",
    recomputes=("block", "ops"),
)


def block(run: BlockRun) -> list[Saved]:
    """What one block keeps for its backward pass, for one token.

    Raises InputError for a model that is not built like Llama, and for adapters.
    """
    _check(run)
    if run.recompute == "ops":
        return _selected(run)
    return _compiled(run) if run.compiled else _eager(run)


def working_bytes(run: BlockRun) -> int:
    """Bytes a token of the gradients that are there together in one block's backward pass.

    Those of gate and up, and of the residual: what the allocator reports beyond the kept tensors.
    """
    shape = run.shape
    return run.compute_bytes * 2 * shape.intermediate_size + run.residual_bytes * shape.hidden_size


def _eager(run: BlockRun) -> list[Saved]:
    hidden, bits = run.shape.hidden_size, 8 * run.compute_bytes
    found = [
        saved
        for name in ("attention_norm", "ffn_norm")
        for saved in (
            Saved(f"{name}.input", hidden, 32),
            Saved(f"{name}.rsqrt", 1, 32),
            Saved(f"{name}.normalised", hidden, bits),
            Saved(f"{name}.output", hidden, bits, split="whole"),
        )
    ]
    return [
        *found,
        *_attention(run, "q", "k", "v", "out"),
        *_mlp(run, "w1", "w3", "silu", "w2.input"),
    ]


def _compiled(run: BlockRun) -> list[Saved]:
    hidden, bits = run.shape.hidden_size, 8 * run.compute_bytes
    return [
        Saved("input", hidden, 8 * run.residual_bytes),
        Saved("wo.output", hidden, bits),
        Saved("norms.rsqrt", 2, 32),
        Saved("norms.output", 2 * hidden, bits, split="whole"),
        *_attention(run, "q", "k", "v", "out"),
        *_mlp(run, "w1", "w3", "w2.input"),
    ]


def _selected(run: BlockRun) -> list[Saved]:
    shape, bits = run.shape, 8 * run.compute_bytes
    found = [
        Saved("input", shape.hidden_size, 8 * run.residual_bytes),
        *_attention(run, "q", "out"),
        Saved("wv", shape.kv_heads * shape.head_dim, bits, split="tensor"),
        *_mlp(run, "w1"),
    ]
    return found if run.compiled else [*found, Saved("w2", shape.hidden_size, bits)]


def _attention(run: BlockRun, *names: str) -> list[Saved]:
    """Tensors over all heads, with the log-sum that the kernel keeps."""
    shape, bits = run.shape, 8 * run.compute_bytes
    features = shape.heads * shape.head_dim
    found = [Saved(f"attention.{name}", features, bits, split="tensor") for name in names]
    return [*found, Saved("attention.log_sum", shape.heads, 32, split="tensor")]


def _mlp(run: BlockRun, *names: str) -> list[Saved]:
    width, bits = run.shape.intermediate_size, 8 * run.compute_bytes
    return [Saved(name, width, bits, split="tensor") for name in names]


def _check(run: BlockRun) -> None:
    shape = run.shape
    only_full_training("torchtitan", run, ("ops",))
    refuse(
        "torchtitan",
        run,
        [
            (run.moe, "mixture of experts in its Llama 3"),
            (run.attention == "eager", "attention but scaled_dot_product_attention"),
            (shape.norm != "rms" or not shape.norm_weight, "norm but RMSNorm with a weight"),
            (shape.norms_per_block != 2, f"{shape.norms_per_block} norms in a block"),
            (not shape.gated_mlp, "MLP without a gate"),
            (shape.parallel_residual, "attention beside the MLP"),
            (shape.qk_norm or shape.qk_norm_whole, "norms of queries and keys"),
            (shape.kv_lora_rank is not None, "latent attention"),
            (shape.learned_positions or shape.alibi, "positions but rotary ones"),
            (shape.residual_dropout > 0 or shape.attention_dropout > 0, "dropout"),
        ],
    )
