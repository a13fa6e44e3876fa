"""What training keeps of a model's forward pass, from the model class itself on meta tensors.

The whole model runs forward and backward with nothing computed; even a 70B model takes seconds.
This is the second way to the activations, beside the formulas of `qdeploy.plan.trainers.hf`, and
the only one for an architecture that has no family.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from qdeploy.core.errors import InputError
from qdeploy.plan.request import Attention
from qdeploy.trace.adapters import Adapters, add_adapters
from qdeploy.trace.attention import MetaKernels
from qdeploy.trace.autocast import CudaAutocast
from qdeploy.trace.kept import Kept, KeptTensors
from qdeploy.trace.live import LiveBytes
from qdeploy.trace.model import blocks, build

NumberType = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TraceRun:
    """One forward and backward pass. Raises InputError for sizes that are not positive."""

    batch: int
    seq_len: int
    weights: NumberType = "bf16"
    autocast: NumberType | None = None
    """16-bit type of torch.autocast; None: everything is computed in the weights' type."""
    attention: Attention = "sdpa"
    padded: bool = False
    """The batch has a padding mask."""
    adapters: Adapters | None = None
    sdpa_flash: bool = True
    """The GPU has PyTorch's flash kernel (compute capability 8.0)."""

    def __post_init__(self) -> None:
        for name in ("batch", "seq_len"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, found {getattr(self, name)}")


@dataclass(frozen=True)
class TracedActivations:
    """What one run keeps, in bytes."""

    parameters: int
    """Of the model, tied ones counted once, adapters left out."""
    blocks: tuple[int, ...]
    """Kept by each block. What blocks share, such as a mask, counts for the first one."""
    outside_bytes: int
    """Kept before and behind the blocks, logits left out."""
    logits_bytes: int
    """Kept of the logits before the loss, such as by a softcap."""
    working_bytes: int
    """What the backward pass through the blocks needs at its peak beyond all that is kept:
    gradients of activations, not those of weights."""
    kept: tuple[Kept, ...]
    """All tensors that are kept, by module."""

    @property
    def bytes(self) -> int:
        """Kept by the whole model, logits left out."""
        return sum(self.blocks) + self.outside_bytes


def trace(config: dict[str, Any], run: TraceRun) -> TracedActivations:
    """Run the model of a parsed config.json forward and backward on meta tensors.

    Raises InputError where transformers has no class for it, or no such attention.
    """
    dtype = _DTYPES[run.weights]
    compute = _DTYPES[run.autocast] if run.autocast else dtype
    model = build(config, dtype=dtype, attention=run.attention)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if run.adapters is not None:
        add_adapters(model, run.adapters, compute=compute, autocast=run.autocast is not None)
    for module in model.modules():
        module.qdeploy_compute_dtype = compute  # type: ignore[assignment]
    path, modules = blocks(model)
    kept, working = _run(model, modules[-1], run, compute)
    kept = [_placed(path, entry) for entry in kept]
    by_block = [0] * len(modules)
    for entry in kept:
        if entry.block is not None:
            by_block[entry.block] += entry.bytes
    # What runs in the outermost module itself, behind all others, works on the logits.
    logits = sum(entry.bytes for entry in kept if not entry.module)
    outside = sum(entry.bytes for entry in kept) - sum(by_block) - logits
    return TracedActivations(parameters, tuple(by_block), outside, logits, working, tuple(kept))


def _run(
    model: nn.Module, last_block: nn.Module, run: TraceRun, compute: torch.dtype
) -> tuple[list[Kept], int]:
    """What the forward pass keeps, and the working bytes of the backward pass."""
    outputs: list[torch.Tensor] = []
    last_block.register_forward_hook(lambda _, __, out: outputs.append(_tensor(out)))
    weights = [*model.parameters()]
    live, tensors = LiveBytes([*weights, *model.buffers()]), KeptTensors(model)
    gradients: set[int | None] = set()
    with ExitStack() as stack:
        stack.enter_context(live)
        stack.enter_context(MetaKernels(sdpa_flash=run.sdpa_flash, padded=run.padded))
        copies: list[torch.Tensor] = []
        if run.autocast:
            autocast = stack.enter_context(CudaAutocast(compute, weights))
            copies = autocast.copies
        with tensors.watch():
            result = model(**_inputs(model, run))
        kept = tensors.found(copies)
        tensors.release()
        del result
        for weight in [*weights, *copies]:
            if weight.requires_grad:
                weight.register_hook(  # type: ignore[no-untyped-call]
                    lambda gradient: gradients.add(live.number(gradient))
                )
        block_output = outputs.pop()
        start = len(live.events)
        gradient = torch.empty_like(block_output)
        torch.autograd.backward(block_output, gradient)
    for weight in weights:
        if weight.grad is not None:
            gradients.add(live.number(weight.grad))
    return kept, live.peak_since(start, gradients)


def _inputs(model: nn.Module, run: TraceRun) -> dict[str, Any]:
    shape = (run.batch, run.seq_len)
    found: dict[str, Any] = {"input_ids": torch.zeros(shape, dtype=torch.int64, device="meta")}
    config: Any = model.config
    if hasattr(config, "use_cache"):
        found["use_cache"] = False
    if run.padded:
        found["attention_mask"] = torch.ones(shape, dtype=torch.int64, device="meta")
    return found


def _tensor(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def _placed(path: str, kept: Kept) -> Kept:
    if not kept.module.startswith(f"{path}."):
        return kept
    number, _, inside = kept.module[len(path) + 1 :].partition(".")
    return replace(kept, block=int(number), module_in_block=inside)
