"""What one training step allocates on a CPU, beside what the planner's formulas say.

    python benchmarks/activation_step.py MODEL_FOLDER [--batch 1] [--seq-len 256]

The model's class is built with random weights and runs one forward and backward pass under
PyTorch's profiler; what counts are the allocator's events. The formula's side is the block of
`qdeploy.plan.trainers.hf` times the layers, and every tensor behind the blocks written out. Two
numbers are compared: what is allocated at the end of the forward pass, and the peak of the step.
`qdeploy demo --fetch-only` says where it puts a model. SDPA on a CPU runs a flash kernel,
in FP32 and for grouped queries too, so that it is compared with flash attention.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from allocator import allocated
from machine import describe

from qdeploy.models.family import shape_of
from qdeploy.models.shape import ModelShape
from qdeploy.models.source import read_config
from qdeploy.plan.request import Attention
from qdeploy.plan.saved import BlockRun, saved_bytes
from qdeploy.plan.trainers import hf

MIB = 1024**2
SETTINGS: list[tuple[bool, Attention]] = [
    (False, "eager"), (False, "sdpa"), (True, "eager"), (True, "sdpa"),
]  # fmt: skip


def build(config: dict[str, Any], attention: Attention) -> Any:
    """The model in FP32, with gradients, which are there from the second step on."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation=attention
    ).train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def measured(
    config: dict[str, Any], ids: torch.Tensor, attention: Attention, *, autocast: bool
) -> tuple[int, int]:
    """End of the forward pass with logits held, and peak of a step that lets them go."""
    model = build(config, attention)

    def forward() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(input_ids=ids, labels=ids, use_cache=False)

    def step() -> None:
        forward().loss.backward()

    forward()
    return allocated(forward)[0], allocated(step)[1]


def formula(
    shape: ModelShape, batch: int, seq_len: int, attention: Attention, *, autocast: bool
) -> tuple[int, int]:
    """The same two numbers; weights' 16-bit copies under autocast are among them."""
    kernel: Attention = "flash" if attention == "sdpa" else attention
    run = BlockRun(
        shape=shape, moe=False, compute_bytes=2 if autocast else 4, residual_bytes=4,
        autocast=autocast, attention=kernel, keys=seq_len, padded=False, trained=None,
        adapted=frozenset(),
    )  # fmt: skip
    tokens, hidden, element = batch * seq_len, shape.hidden_size, run.compute_bytes
    blocks = shape.layers * tokens * saved_bytes(run, hf.block(run), tensor=1, sequence=1)
    final_norm = tokens * (8 * hidden + 4)
    rotation = 2 * seq_len * shape.head_dim * 4
    logits, fp32 = (tokens * shape.vocab_size * size for size in (element, 4))
    linears = [*shape.attention_linears, *shape.mlp_linears]
    matrices = shape.layers * sum(one.out_features * one.in_features for one in linears)
    copies = 2 * (matrices + shape.vocab_size * hidden) if autocast else 0
    behind = final_norm + rotation + element * tokens * hidden + copies
    kept = blocks + behind
    # The peak is in the loss, or where the head's new gradient waits to be added to the old one.
    head_gradient = 4 * shape.vocab_size * hidden
    return kept + logits + fp32, kept + max(3 * fp32, logits + head_gradient)


def main() -> None:
    """Print the comparison as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=256)
    given = parser.parse_args()
    config = read_config(given.model)
    shape = shape_of(config, given.model.resolve().name)
    ids = torch.zeros((given.batch, given.seq_len), dtype=torch.int64)
    print(f"{shape.name}, {given.batch} x {given.seq_len} tokens, {describe()}\n")
    print("| precision, attention | forward, measured | formula | peak, measured | formula |")
    print("| --- | --- | --- | --- | --- |")
    for autocast, attention in SETTINGS:
        found = measured(config, ids, attention, autocast=autocast)
        said = formula(shape, given.batch, given.seq_len, attention, autocast=autocast)
        cells = [
            f"{real / MIB:.1f} MiB | {ours / MIB:.1f} ({ours / real - 1:+.2%})"
            for real, ours in zip(found, said, strict=True)
        ]
        kind = "autocast BF16" if autocast else "FP32"
        print(f"| {kind}, {attention} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
