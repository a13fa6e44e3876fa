"""Quantization-aware training: the forward pass rounds as the exported file will.

`qat: int8` trains for the scheme `int8-rtn`, `qat: int4` for `int4-rtn`: weights (and with INT8 the
activations of each token) go through `core.affine` and back in every linear layer that the scheme
quantizes. Gradients pass the rounding unchanged (the straight-through estimator, arXiv 1308.3432),
but are zero where a value was clamped (arXiv 1602.02830, eq. 4). The scales, which follow the
largest value, are taken as constants.

torchao 0.18 has the same flow (`quantization.qat`), but not these numbers: it multiplies by
`1 / scale` in the weight's own type where qdeploy divides in float32, so that some weights land on
the other side of a half (of normal BF16 weights in INT4 groups of 64, 0.8 %); it refuses symmetric
activations per token; and its rounded weights stay in memory until the backward pass. Here a layer
keeps what a plain linear layer keeps, its input and its parameter, and rounds both again in the
backward pass: the planned memory holds, and so do shards that ZeRO-3 and FSDP gather for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from qdeploy.core.affine import (
    clamped,
    clamped_per_token,
    dequantize,
    quantize_weight,
    round_trip_per_token,
)
from qdeploy.core.errors import InputError
from qdeploy.core.precision import WeightPrecision
from qdeploy.core.scheme import Scheme, load_scheme
from qdeploy.models.family import family_of, shape_of
from qdeploy.train.peft_config import compute_dtype
from qdeploy.train.recipe import Recipe

SCHEMES = {"int8": "int8-rtn", "int4": "int4-rtn"}
"""The scheme of `qdeploy quantize` that each kind of QAT trains for."""


@dataclass(frozen=True)
class FakeQuantization:
    """What the rounding of a linear layer needs to know."""

    weights: WeightPrecision
    quantizes_activations: bool
    stored: torch.dtype
    """Type of the weights in the file that will be quantized; the scales have it too."""

    def weight(self, w_OI: Tensor, dtype: torch.dtype) -> Tensor:
        """`w_OI` as the exported layer has it, in `dtype`."""
        return dequantize(quantize_weight(w_OI.to(self.stored), self.weights, self.stored), dtype)

    def clamped_weight(self, w_OI: Tensor) -> Tensor:
        """Where `weight` clamps."""
        stored_OI = w_OI.to(self.stored)
        return clamped(stored_OI, quantize_weight(stored_OI, self.weights, self.stored))

    def input(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`x` [..., I] as the exported layer multiplies it, in `dtype`."""
        return (round_trip_per_token(x) if self.quantizes_activations else x).to(dtype)


def prepare(model: PreTrainedModel, recipe: Recipe) -> None:
    """Let the linears of `model`'s blocks round in their forward pass, by `recipe.qat`.

    Changes no parameter, name or module. Nothing happens without `qat`. Raises InputError for
    models that the scheme cannot be exported for, among them layers whose input features the group
    size does not divide, and for adapters.
    """
    if recipe.qat is None:
        return
    scheme = load_scheme(SCHEMES[recipe.qat])
    linears = dict(_linears(model, recipe, scheme))
    undivided = scheme.weights.undivided({n: int(m.in_features) for n, m in linears.items()})
    if undivided:
        raise InputError(f"qat: {recipe.qat}: {undivided}", hint="train with qat: int8 or without")
    quantization = FakeQuantization(
        weights=scheme.weights,
        quantizes_activations=scheme.activations is not None,
        stored=compute_dtype(recipe),
    )
    for linear in linears.values():
        _set_forward(linear, partial(_forward, linear, quantization))


def finish(model: PreTrainedModel, recipe: Recipe) -> None:
    """Take away what `prepare` did; the weights stay as trained, unrounded."""
    if recipe.qat is None:
        return
    for _, linear in _linears(model, recipe, load_scheme(SCHEMES[recipe.qat])):
        # The class's own forward shows again.
        vars(linear).pop("forward", None)


def _linears(
    model: PreTrainedModel, recipe: Recipe, scheme: Scheme
) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers that `scheme` quantizes, by name."""
    if recipe.peft is not None:
        raise InputError(
            f"qat: {recipe.qat} with {recipe.peft.kind}: adapters are merged before the export, so "
            "rounding the frozen weights alone would train for other numbers",
            hint="leave out qat or peft",
        )
    config: dict[str, Any] = model.config.to_dict()
    family, shape = family_of(config), shape_of(config, str(config.get("model_type")))
    if shape.experts or not shape.causal:
        kind = "a mixture of experts" if shape.experts else "an encoder"
        raise InputError(
            f"qat: {recipe.qat}: the model is {kind}; only dense decoders can be exported",
            hint="leave out qat",
        )
    for index in range(shape.layers):
        for linear in family.linears:
            name = f"{family.blocks}.{index}.{linear}"
            if scheme.ignores(name):
                continue
            module = model.get_submodule(name)
            if not isinstance(module, nn.Linear):
                raise InputError(
                    f"qat: {recipe.qat}: {name} is a {type(module).__name__}; only nn.Linear "
                    "layers can be exported",
                    hint="leave out qat",
                )
            yield name, module


def _set_forward(module: nn.Module, forward: partial[Tensor]) -> None:
    module.forward = forward


def _forward(linear: nn.Linear, quantization: FakeQuantization, x: Tensor) -> Tensor:
    apply: Callable[..., Tensor] = _FakeQuantizedLinear.apply
    return apply(x, linear.weight, linear.bias, quantization)


class _FakeQuantizedLinear(torch.autograd.Function):
    """`x @ w^T + b` with x and w rounded; saves x and w as they are.

    Shapes: x [..., I], w [O, I], b [O].
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w_OI: Tensor, b_O: Tensor | None, quantization: FakeQuantization
    ) -> Tensor:
        ctx.save_for_backward(x, w_OI)
        ctx.quantization = quantization
        ctx.bias_dtype = None if b_O is None else b_O.dtype
        ctx.dtype = _product_dtype(x)
        return nn.functional.linear(
            quantization.input(x, ctx.dtype),
            quantization.weight(w_OI, ctx.dtype),
            None if b_O is None else b_O.to(ctx.dtype),
        )

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, w_OI = ctx.saved_tensors
        quantization: FakeQuantization = ctx.quantization
        needs_x, needs_w, needs_b, _ = ctx.needs_input_grad
        grad_x = grad_w = grad_b = None
        if needs_x:
            grad_x = (grad @ quantization.weight(w_OI, ctx.dtype)).to(x.dtype)
            if quantization.quantizes_activations:
                grad_x.masked_fill_(clamped_per_token(x), 0.0)
        grad_NO = grad.reshape(-1, grad.shape[-1])
        if needs_w:
            x_NI = quantization.input(x, ctx.dtype).reshape(-1, x.shape[-1])
            grad_w = (grad_NO.T @ x_NI).to(w_OI.dtype)
            grad_w.masked_fill_(quantization.clamped_weight(w_OI), 0.0)
        if needs_b:
            grad_b = grad_NO.sum(dim=0).to(ctx.bias_dtype)
        return grad_x, grad_w, grad_b, None


def _product_dtype(x: Tensor) -> torch.dtype:
    """The type in which a plain linear layer would multiply `x`: autocast's, or its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
