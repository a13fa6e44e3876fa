"""The model's own code without its weights: modules get theirs one block at a time, in float32.

The config's transformers class is built on the meta device, so no memory is taken. Masks, position
embeddings and windows are not rebuilt here: the inner model's own forward is run with blocks that
only note what they are called with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qdeploy.core.errors import InputError
from qdeploy.models.family import Family
from qdeploy.quant.source import Source


class StopForward(Exception):  # noqa: N818 (no error)
    """Raised inside a forward pass whose rest is not needed."""


class Call:
    """How the model calls one block for one batch, the hidden states aside."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs

    def run(self, block: nn.Module, hidden: Tensor) -> Tensor:
        """The block's output hidden states for `hidden` [B, T, H]."""
        out: Tensor | tuple[Tensor, ...] = block(hidden, *self.args, **self.kwargs)
        return out[0] if isinstance(out, tuple) else out


class Skeleton:
    """The model on the meta device, and where its parts lie."""

    def __init__(self, folder: Path, family: Family, device: torch.device) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.model.eval()
        self.device = device
        self._blocks_path = family.blocks
        self.blocks = self.model.get_submodule(family.blocks)

    def missing(self, names: set[str]) -> list[str]:
        """Parameters that the model needs and that are not among tensor `names`, sorted."""
        # Tied parameters are one object, which is listed once, by the embedding's name.
        return sorted(n for n, _ in self.model.named_parameters() if n not in names)

    def block_name(self, index: int) -> str:
        """Path of block `index`: 'model.layers.3'."""
        return f"{self._blocks_path}.{index}"

    @contextmanager
    def block(self, index: int, source: Source) -> Iterator[nn.Module]:
        """Block `index` with its weights in float32; freed at the end."""
        module = self.blocks[index]
        self._materialise(module, self.block_name(index), source)
        try:
            yield module
        finally:
            self.blocks[index] = nn.Module()

    @torch.no_grad()
    def first_calls(
        self, batches: list[tuple[Tensor, Tensor]], source: Source
    ) -> Iterator[tuple[Tensor, list[Call]]]:
        """For each batch (token ids, attention mask): block 0's input and each block's call."""
        self._materialise_outside(source)
        calls: list[Call] = []
        hidden: list[Tensor] = []
        self._note_calls(hidden, calls)
        for input_ids, attention_mask in batches:
            hidden.clear()
            calls.clear()
            try:
                self.model.base_model(
                    input_ids=input_ids.to(self.device),
                    attention_mask=attention_mask.to(self.device),
                    use_cache=False,
                )
            except StopForward:
                yield hidden[0], list(calls)
        for block in self.blocks:
            del block.forward
        self._drop_outside()

    def _note_calls(self, hidden: list[Tensor], calls: list[Call]) -> None:
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):

            def note(x: Tensor, *args: Any, _index: int = index, **kwargs: Any) -> Tensor:
                hidden.append(x)
                calls.append(Call(args, kwargs))
                if _index == last:
                    raise StopForward
                return x

            block.forward = note

    def _outside(self) -> list[tuple[str, nn.Module]]:
        """Modules before the blocks: embeddings and rotary tables, by path."""
        inner = self.model.base_model
        prefix = self.model.base_model_prefix
        return [
            (f"{prefix}.{name}", module)
            for name, module in inner.named_children()
            if f"{prefix}.{name}" != self._blocks_path
        ]

    def _materialise_outside(self, source: Source) -> None:
        for name, module in self._outside():
            self._materialise(module, name, source)

    def _drop_outside(self) -> None:
        for _, module in self._outside():
            module.to(device="meta")

    def _materialise(self, module: nn.Module, name: str, source: Source) -> None:
        """Give `module` its buffers as transformers computes them, and its weights from disk."""
        for part in module.modules():
            if any(True for _ in part.buffers(recurse=False)):
                part.to_empty(device=self.device, recurse=False)
                self.model._init_weights(part)
        for part_name, part in module.named_modules():
            prefix = f"{name}.{part_name}" if part_name else name
            for key, parameter in list(part.named_parameters(recurse=False)):
                tensor = source.read(f"{prefix}.{key}")
                if tensor.shape != parameter.shape:
                    raise InputError(
                        f"{prefix}.{key} has shape {list(tensor.shape)}, "
                        f"config.json asks for {list(parameter.shape)}"
                    )
                value = tensor.to(self.device, torch.float32, copy=True)
                setattr(part, key, nn.Parameter(value, requires_grad=False))
