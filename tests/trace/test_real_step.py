"""A real training step on the CPU, by the allocator's events, against formula and loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from activation_step import build, measured
from allocator import allocated

from qdeploy.models.family import shape_of
from qdeploy.plan.saved import saved_bytes
from qdeploy.plan.trainers import hf
from qdeploy.trace.activations import TraceRun

from .agreement import block_run
from .architectures import config

BATCH, SEQ_LEN, VOCABULARY, LAYERS = 2, 96, 1000, 3
TOKENS = BATCH * SEQ_LEN
SIZES = {
    "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, "hidden_size": 128,
    "intermediate_size": 352, "head_dim": 32,
}  # fmt: skip


def expected(sizes: dict[str, Any], attention: str, *, autocast: bool) -> tuple[int, int]:
    """What a forward pass leaves allocated and the peak of a step, by the formulas, each tensor
    outside the blocks written out.

    SDPA of a CPU keeps what FlashAttention keeps, in FP32 and for grouped queries too.
    """
    run = TraceRun(
        batch=BATCH, seq_len=SEQ_LEN, weights="fp32",
        attention="flash" if attention == "sdpa" else "eager",
        autocast="bf16" if autocast else None,
    )  # fmt: skip
    known, shape = block_run(sizes, run), shape_of(sizes, "model")
    element, hidden = known.compute_bytes, shape.hidden_size
    blocks = LAYERS * TOKENS * saved_bytes(known, hf.block(known), tensor=1, sequence=1)
    final_norm = TOKENS * (4 * hidden + 4 * hidden + 4)
    rotation = 2 * SEQ_LEN * shape.head_dim * 4  # cosine and sine, one for all blocks
    head_input = TOKENS * element * hidden
    logits, log_softmax = TOKENS * VOCABULARY * element, TOKENS * VOCABULARY * 4
    copies = 0
    if autocast:
        matrices = (shape.attention_linears, shape.mlp_linears)
        weights = LAYERS * sum(x.out_features * x.in_features for part in matrices for x in part)
        copies = 2 * (weights + VOCABULARY * hidden)
    kept = blocks + final_norm + rotation + head_input + logits + log_softmax + copies
    # A step drops the logits before its backward pass, which makes two FP32 gradients of them.
    return kept, kept - logits + 2 * TOKENS * VOCABULARY * 4


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_what_a_cpu_allocates(name: str, attention: str, autocast: bool) -> None:
    sizes = config(name, **SIZES)
    ids = torch.zeros((BATCH, SEQ_LEN), dtype=torch.int64)
    kept, peak = measured(sizes, ids, attention, autocast=autocast)
    expected_kept, expected_peak = expected(sizes, attention, autocast=autocast)
    assert expected_kept == pytest.approx(kept, rel=0.01)
    assert expected_peak == pytest.approx(peak, rel=0.03)


def test_checkpointing_keeps_the_inputs_of_blocks() -> None:
    sizes = config("llama", **SIZES)
    ids = torch.zeros((BATCH, SEQ_LEN), dtype=torch.int64)

    def left(layers: int) -> int:
        smaller = build({**sizes, "num_hidden_layers": layers}, "eager")
        smaller.gradient_checkpointing_enable({"use_reentrant": False})
        return allocated(lambda: smaller.model(input_ids=ids, use_cache=False))[0]

    left(1)
    # Each block's checkpoint keeps the random generator's state beside the block's input.
    state = torch.get_rng_state().numel()
    assert left(3) - left(2) == pytest.approx(TOKENS * 128 * 4 + state, rel=0.001)
