"""Stand-ins for fused attention kernels, which no meta tensor reaches.

They take and keep what the kernels do and compute nothing: queries, keys, values, output and one
FP32 logarithm a row (FlashAttention-2, arXiv 2307.08691, algorithm 1); backward makes the three
gradients, and the FP32 accumulator of the queries' gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FLASH = "qdeploy_fused"
"""Name under which the stand-in for FlashAttention-2 is registered with transformers."""


class _Kernel(torch.autograd.Function):
    """One fused attention over [batch, heads, tokens, head size]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        batch, heads, tokens, _ = query.shape
        # The kernels write [batch, tokens, heads, head size], which is what comes next.
        out = query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
        log_sum = torch.empty(batch, heads, tokens, dtype=torch.float32, device=query.device)
        kept = [query, key, value, out, log_sum]
        ctx.save_for_backward(*kept, *([] if bias is None else [bias]))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value = ctx.saved_tensors[:3]
        accumulator = torch.empty_like(query, dtype=torch.float32)
        found = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        del accumulator, grad
        return (*found, None)


class _Grouped(torch.autograd.Function):
    """One product for each expert's rows, `torch.nn.functional.grouped_mm`."""

    @staticmethod
    def forward(ctx: Any, read: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # As autograd's own formula: the input is kept for the weight's gradient only.
        ctx.trained = weight.requires_grad
        ctx.save_for_backward(weight, *([read] if ctx.trained else []))
        ctx.shape = read.shape
        return read.new_empty(read.shape[0], weight.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight = ctx.saved_tensors[0]
        return grad.new_empty(ctx.shape), torch.empty_like(weight) if ctx.trained else None


class MetaKernels(TorchFunctionMode):
    """Does for meta tensors what they cannot do themselves.

    Every `scaled_dot_product_attention` runs the stand-in, as a GPU's fused kernels would; a
    boolean mask becomes a bias of the queries' type at each call
    (aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask). Dropout keeps a
    mask of one byte an element, as on a GPU. Conditions on values are true unless the batch is
    padded: models ask in this way whether no sequence is packed and no token padded.
    """

    def __init__(self, *, sdpa_flash: bool = True, padded: bool = False) -> None:
        super().__init__()
        self._flash, self._padded = sdpa_flash, padded

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__bool__" and args[0].is_meta:
            return not self._padded
        if name == "dropout":
            return _dropout(*args, **kwargs)
        if name in ("grouped_mm", "_grouped_mm"):
            return _Grouped.apply(*args[:2])  # type: ignore[no-untyped-call]
        if name != "scaled_dot_product_attention":
            return func(*args, **kwargs)
        query, key, value, *rest = args
        mask = rest[0] if rest else kwargs.get("attn_mask")
        if not self._has_kernel(query, key, mask):
            return torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, mask, 0.0, kwargs.get("is_causal", False),
                enable_gqa=kwargs.get("enable_gqa", False),
            )[0]  # fmt: skip
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.empty_like(mask, dtype=query.dtype)
        return _Kernel.apply(query, key, value, mask)  # type: ignore[no-untyped-call]

    def _has_kernel(
        self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
    ) -> bool:
        """Flash is the one kernel that takes groups of queries: 16 bits, no mask."""
        if query.shape[1] == key.shape[1]:
            return True
        return self._flash and query.dtype.itemsize == 2 and mask is None


def _dropout(
    read: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    del inplace
    return torch.native_dropout(read, p, train=True)[0] if training and 0 < p < 1 else read


def flash_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """FlashAttention-2 as transformers calls it (integrations/flash_attention.py).

    Values are padded to the width of the queries. FP32 queries are cast to the type in which the
    module's linears multiply. With a padding mask the padded rows are taken out and put back.
    """
    del kwargs
    width, value_width = query.shape[-1], value.shape[-1]
    if value_width != width:
        value = torch.nn.functional.pad(value, [0, width - value_width])
    if query.dtype == torch.float32:
        dtype = getattr(module, "qdeploy_compute_dtype", torch.float32)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attention_mask is None:
        out = _attend(query, key, value)
    else:
        out = _without_padding(query, key, value)
    return out[..., :value_width], None


def _without_padding(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, heads, head size]; a meta mask names no rows, so that all count as real."""
    batch, heads, tokens, width = query.shape
    rows = torch.empty(batch * tokens, dtype=torch.int64, device=query.device)

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.transpose(1, 2).reshape(batch * tokens, tensor.shape[1], width)
        return flat.index_select(0, rows)[None].transpose(1, 2)

    out = _attend(taken(query), taken(key), taken(value))[0]
    padded = torch.zeros_like(out).index_put((rows,), out)
    return padded.view(batch, tokens, heads, width)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _Kernel.apply(query, key, value, None)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


def padding_mask(**kwargs: Any) -> torch.Tensor | None:
    """The mask that the stand-in gets: the batch's own, as the flash kernels of transformers."""
    mask: torch.Tensor | None = kwargs.get("attention_mask")
    return mask


def register() -> None:
    """Make the stand-in known to transformers under the name `FLASH`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(FLASH, flash_attention)
    AttentionMaskInterface.register(FLASH, padding_mask)
