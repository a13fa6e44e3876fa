"""Tensors that a decoder block keeps between its forward and its backward pass.

A trainer (`trainers/NAME.py`) lists them for one block; `terms/activations.py` adds them up. What
is listed depends on how the trainer's model is written, not on the model's mathematics alone:
autograd keeps what the operations that were called need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from qdeploy.models.shape import ModelShape
from qdeploy.plan.request import Attention

NORMS = (
    "input_layernorm", "post_attention_layernorm",
    "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
"""What the norms of a block are called in `BlockRun.trained`: LLaMA's names in every family."""

Split = Literal["tensor", "sequence", "whole"]
Recomputed = Literal["none", "attention", "ops"]


@dataclass(frozen=True)
class Saved:
    """One kept tensor, for one token of the micro-batch."""

    name: str
    numbers: int
    """Elements a token; an attention matrix has heads x keys."""
    bits: int
    """Bits of an element; 8 for a dropout mask (torch.bool)."""
    needs: frozenset[str] = frozenset()
    """Modules for whose weight gradient (or adapter) it is kept; kept if any of them is trained.
    Empty: it is kept for the gradient of an activation, always."""
    split: Split = "sequence"
    """tensor: it lies inside a tensor-parallel region and is divided by the tensor-parallel
    degree; sequence: it is divided only with sequence parallelism (arXiv 2205.05198, section 4);
    whole: each rank keeps all of it."""


@dataclass(frozen=True)
class BlockRun:
    """How one block runs."""

    shape: ModelShape
    moe: bool
    """Whether the block's MLP is a mixture of experts."""
    compute_bytes: int
    """Bytes of a number in matrix products."""
    residual_bytes: int
    """Bytes of a number in the residual stream."""
    autocast: bool
    """torch.autocast casts weights and each linear's input where their type is another one."""
    attention: Attention
    keys: int
    """Keys that a token attends to: tokens of the sequence."""
    padded: bool
    """The batch has a padding mask, with which SDPA repeats keys and values to all heads."""
    trained: frozenset[str] | None
    """Modules of the block whose weights get a gradient: q_proj, input_layernorm ...; None: all."""
    adapted: frozenset[str]
    """Linears with a LoRA adapter; their frozen weight gets none, the adapter does."""
    lora_dropout: bool = False
    lora_rank: int = 0
    adapter_bytes: int = 4
    """Bytes of an adapter's weight."""
    sdpa_flash: bool = True
    """The GPU has PyTorch's flash kernel: compute capability 8.0. Without it SDPA runs grouped
    queries in single operations."""
    quantized_base: bool = False
    """Frozen linears are stored in 4 or 8 bits and dequantized for each product."""
    recompute: Recomputed = "none"
    """What is not kept but computed again: the inside of attention (arXiv 2205.05198, section 5),
    or all but matrix products and attention (torchtitan's selective op)."""
    compiled: bool = False
    """torch.compile: elementwise chains are fused and recomputed."""

    def keeps(self, saved: Saved) -> bool:
        """Whether autograd keeps `saved` in this run."""
        if not saved.needs or self.trained is None:
            return True
        return bool(saved.needs & (self.trained | self.adapted))


def saved_bytes(run: BlockRun, tensors: Iterable[Saved], *, tensor: int, sequence: int) -> int:
    """Bytes of `tensors` for one token, divided by the degrees of their regions, rounded up."""
    bits = {"tensor": 0, "sequence": 0, "whole": 0}
    for saved in tensors:
        if run.keeps(saved):
            bits[saved.split] += saved.numbers * saved.bits
    divided = {"tensor": tensor, "sequence": sequence, "whole": 1}
    return sum(-(-bits[split] // (8 * degree)) for split, degree in divided.items())
