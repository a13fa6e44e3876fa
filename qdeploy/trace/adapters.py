"""LoRA and 4-bit linears as peft and bitsandbytes run them, without either package.

peft/tuners/lora/layer.py and bnb.py (0.17), bitsandbytes/nn/modules.py and autograd/_functions.py:
the casts and the order of operations, on which it depends what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Adapters:
    """Which linears get an adapter, and over what base."""

    rank: int
    targets: frozenset[str]
    """Last parts of module names: q_proj, c_attn ..."""
    dropout: float = 0.0
    quantized: bool = False
    """The adapted linears are 4-bit ones, everything else is FP32."""


class _FourBit(torch.autograd.Function):
    """A product with a 4-bit weight, of which autograd keeps nothing but that weight."""

    @staticmethod
    def forward(ctx: Any, read: torch.Tensor, out_features: int) -> torch.Tensor:
        ctx.in_features = read.shape[-1]
        return read.new_empty(*read.shape[:-1], out_features)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_empty(*grad.shape[:-1], ctx.in_features), None


class FourBitLinear(nn.Module):
    """Multiplies in 16 bits and writes the type that it read."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features, self._dtype = in_features, out_features, dtype

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        """The product in 16 bits, cast to the type of `read`."""
        out: torch.Tensor = _FourBit.apply(  # type: ignore[no-untyped-call]
            read.to(self._dtype), self.out_features
        )
        return out.to(read.dtype)


class LoraLinear(nn.Module):
    """A frozen linear and its adapter."""

    def __init__(
        self,
        base: nn.Module,
        sizes: tuple[int, int],
        adapters: Adapters,
        *,
        dtype: torch.dtype,
        autocast: bool,
    ) -> None:
        super().__init__()
        self.base, self._autocast = base, autocast
        in_features, out_features = sizes
        kind = {"bias": False, "dtype": dtype, "device": "meta"}
        self.lora_A = nn.Linear(in_features, adapters.rank, **kind)  # type: ignore[arg-type]
        self.lora_B = nn.Linear(adapters.rank, out_features, **kind)  # type: ignore[arg-type]
        self.dropout = nn.Dropout(adapters.dropout) if adapters.dropout else nn.Identity()

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        """The linear's output plus the adapter's."""
        result: torch.Tensor = self.base(read)
        written = result.dtype
        if not (isinstance(self.base, FourBitLinear) and self._autocast):
            read = read.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(self.dropout(read))) * 2.0
        if isinstance(self.base, FourBitLinear) and self._autocast:
            return result
        return result.to(written)


def add_adapters(
    model: nn.Module, adapters: Adapters, *, compute: torch.dtype, autocast: bool
) -> None:
    """Freeze `model` and put adapters beside the linears that are named, in place."""
    model.requires_grad_(requires_grad=False)
    for path, module in list(model.named_modules()):
        name = path.rpartition(".")[2]
        if name not in adapters.targets or not hasattr(module, "weight"):
            continue
        sizes = _sizes(module)
        base = FourBitLinear(*sizes, compute) if adapters.quantized else module
        # peft keeps adapters of 16-bit models in FP32 (autocast_adapter_dtype).
        lora = LoraLinear(base, sizes, adapters, dtype=torch.float32, autocast=autocast)
        model.set_submodule(path, lora)
    if adapters.quantized:
        for parameter in model.parameters():
            parameter.data = parameter.data.float()


def _sizes(module: nn.Module) -> tuple[int, int]:
    """(in_features, out_features); transformers' Conv1D holds its weight the other way round."""
    rows, columns = module.weight.shape  # type: ignore[misc]
    return (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)
