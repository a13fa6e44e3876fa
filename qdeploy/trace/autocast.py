"""CUDA's autocast over meta tensors, which PyTorch's own does not reach.

Autocast is part of PyTorch's dispatcher and knows devices; a meta tensor is on none. Which
operations run in 16 bits and which in FP32 is PyTorch's documented list for CUDA
(docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SIXTEEN_BITS = {
    "__matmul__", "__rmatmul__", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm",
    "chain_matmul", "conv1d", "conv2d", "conv3d", "einsum", "linear", "matmul", "mm", "multi_dot",
    "mv", "prelu", "scaled_dot_product_attention",
}  # fmt: skip
_FP32 = {
    "__pow__", "__rpow__", "cdist", "cosh", "cosine_similarity", "cross_entropy", "cumprod",
    "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "layer_norm", "log", "log10", "log1p",
    "log2", "log_softmax", "logsumexp", "mse_loss", "nll_loss", "norm", "normalize", "pow", "prod",
    "reciprocal", "renorm", "rsqrt", "sinh", "smooth_l1_loss", "softmax", "softmin", "softplus",
    "sum", "tan",
}  # fmt: skip
_NAMES_ITS_TYPE = {"cumprod", "cumsum", "log_softmax", "prod", "softmax", "sum"}
"""These run as they are where the caller gives a dtype."""


class CudaAutocast(TorchFunctionMode):
    """What `torch.autocast("cuda", dtype)` does, for tensors of any device."""

    def __init__(self, dtype: torch.dtype, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._dtype = dtype
        self._weights = {tensor.untyped_storage()._cdata for tensor in parameters}
        self._cached: dict[int, torch.Tensor] = {}
        self.copies: list[torch.Tensor] = []
        """16-bit copies of weights. A trained parameter is cast once, a view of one each time."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _SIXTEEN_BITS:
            return func(*self._cast(args, self._dtype), **self._cast(kwargs, self._dtype))
        if name in _FP32 and not (name in _NAMES_ITS_TYPE and kwargs.get("dtype")):
            return func(*self._cast(args, torch.float32), **self._cast(kwargs, torch.float32))
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, dtype)
        if isinstance(value, dict):
            return {key: self._cast(item, dtype) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._cast(item, dtype) for item in value)
        return value

    def _tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64):
            return tensor
        if tensor.untyped_storage()._cdata not in self._weights:
            return tensor.to(dtype)
        if id(tensor) in self._cached and dtype == self._dtype:
            return self._cached[id(tensor)]
        copy = tensor.to(dtype)
        self.copies.append(copy)
        if tensor.is_leaf and tensor.requires_grad and dtype == self._dtype:
            self._cached[id(tensor)] = copy
        return copy
