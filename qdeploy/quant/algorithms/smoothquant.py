"""SmoothQuant (arXiv 2211.10438) with a search of its strength for each smoothing pair.

Dividing channel j of an activation by s_j and multiplying column j of the weights by it moves
outliers from activations, where they cost the whole token its resolution, into the weights:
`s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)` (eq. 4). For each pair every alpha, and leaving it
alone, is tried with really quantized activations and weights; the smallest relative error of the
linears' outputs wins, so that no pair can get worse on the sample than without smoothing.

Shapes: O out_features, I in_features, N sampled tokens, S output channels of the source.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qdeploy.core.affine import dequantize, quantize_weight, round_trip_per_token
from qdeploy.models.family import SmoothingPair
from qdeploy.quant.block import BlockWork, LinearInput
from qdeploy.quant.manifest import SmoothingRecord

NEEDS_INPUTS = True
NEEDS_QUANTIZED_ACTIVATIONS = True

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_FLOOR = 1e-5


def run(work: BlockWork) -> None:
    """Choose and fold the best strength for each pair, in the order in which they run."""
    for pair in work.pairs():
        channels_I = source_channels(work, pair)
        exact = exact_outputs(work, pair)
        best, best_error, before = None, float("inf"), 0.0
        scales_I = torch.ones(len(channels_I), device=channels_I.device)
        for alpha in (None, *ALPHAS):
            tried_I = strength(work, pair, alpha, channels_I)
            error = output_error(work, pair, exact, tried_I)
            if alpha is None:
                before = error
            if error < best_error:
                best, best_error, scales_I = alpha, error, tried_I
        if best is not None:
            fold(work, pair, scales_I, channels_I)
        work.smoothing.append(
            SmoothingRecord(
                source=f"{work.name}.{pair.source}",
                linears=[f"{work.name}.{linear}" for linear in pair.linears],
                alpha=best,
                error_before=before,
                error_after=best_error,
            )
        )


def source_channels(work: BlockWork, pair: SmoothingPair) -> Tensor:
    """For each input column of the pair's linears, the source's output channel [I] that feeds it.

    With grouped queries each value channel feeds the same channel of all heads of its group.
    """
    inputs = work.weight(pair.linears[0]).shape[1]
    weight = work.parameter(pair.source, "weight")
    outputs = work.weight(pair.source).shape[0] if weight.dim() == 2 else len(weight)
    columns = torch.arange(inputs, device=weight.device)
    if outputs == inputs:
        return columns
    D, heads_per_group = work.shape.head_dim, work.shape.heads // work.shape.kv_heads
    return columns // D // heads_per_group * D + columns % D


def strength(
    work: BlockWork, pair: SmoothingPair, alpha: float | None, channels_I: Tensor
) -> Tensor:
    """The scales s [I] of `alpha` (None: ones), as the source's stored dtype lets them be.

    Norm weights are stored rounded; s is what the rounded weight really divides by, so that the
    folded block computes the same function.
    """
    if alpha is None:
        return torch.ones(len(channels_I), device=channels_I.device)
    w_absmax_I = torch.stack([work.weight(n).abs().amax(dim=0) for n in pair.linears]).amax(0)
    x_absmax_S = _per_source(work.inputs[pair.linears[0]].absmax, channels_I)
    w_absmax_S = _per_source(w_absmax_I, channels_I)
    s_S = x_absmax_S.clamp(min=_FLOOR) ** alpha / w_absmax_S.clamp(min=_FLOOR) ** (1 - alpha)
    s_S = s_S.clamp(min=_FLOOR)
    # A channel that is silent in calibration, or that nothing reads, has no say.
    s_S = torch.where((x_absmax_S > 0) & (w_absmax_S > 0), s_S, torch.ones_like(s_S))
    weight = work.parameter(pair.source, "weight")
    if weight.dim() == 1:
        gain_S = work.family.norm_offset + weight
        rounded_S = _rounded_gain(work, pair.source, gain_S / s_S)
        s_S = torch.where(
            (gain_S != 0) & (rounded_S != 0), gain_S / rounded_S, torch.ones_like(s_S)
        )
    return s_S[channels_I]


def exact_outputs(work: BlockWork, pair: SmoothingPair) -> dict[str, Tensor]:
    """The unquantized outputs [N, O] of the pair's linears on the sampled tokens, bias aside."""
    rows_NI = work.inputs[pair.linears[0]].rows
    return {linear: rows_NI @ work.weight(linear).T for linear in pair.linears}


def output_error(
    work: BlockWork, pair: SmoothingPair, exact: dict[str, Tensor], scales_I: Tensor
) -> float:
    """Mean over the pair's linears of ||Y_q - Y||^2 / ||Y||^2 on the sampled tokens."""
    rounded_NI = round_trip_per_token(work.inputs[pair.linears[0]].rows / scales_I)
    total = 0.0
    for linear, exact_NO in exact.items():
        scale_dtype = work.dtypes[f"{linear}.weight"]
        qt = quantize_weight(work.weight(linear) * scales_I, work.scheme.weights, scale_dtype)
        error = rounded_NI @ dequantize(qt, torch.float32).T - exact_NO
        power = float(exact_NO.square().sum())
        total += float(error.square().sum()) / power if power else 0.0
    return total / len(exact)


def fold(work: BlockWork, pair: SmoothingPair, scales_I: Tensor, channels_I: Tensor) -> None:
    """Divide the source's outputs by s, multiply the linears' columns by it; update the inputs."""
    weight = work.parameter(pair.source, "weight")
    outputs = int(channels_I.max()) + 1
    s_S = torch.ones(outputs, device=scales_I.device)
    s_S[channels_I] = scales_I
    if weight.dim() == 1:
        gain_S = work.family.norm_offset + weight
        weight.copy_(_rounded_gain(work, pair.source, gain_S / s_S) - work.family.norm_offset)
    else:
        work.weight(pair.source).div_(s_S[:, None])
    bias = work.bias(pair.source)
    if bias is not None:
        bias.div_(s_S)
    for linear in pair.linears:
        work.weight(linear).mul_(scales_I)
        old = work.inputs[linear]
        work.inputs[linear] = LinearInput(old.absmax / scales_I, old.rows / scales_I)
        work.note_method(linear, "smoothquant")


def _rounded_gain(work: BlockWork, norm: str, gain_S: Tensor) -> Tensor:
    """The norm's gain after its weight has been stored."""
    offset = work.family.norm_offset
    return (gain_S - offset).to(work.dtypes[f"{norm}.weight"]).float() + offset


def _per_source(values_I: Tensor, channels_I: Tensor) -> Tensor:
    """The largest of the columns that each source channel feeds, [S]."""
    largest_S = torch.zeros(int(channels_I.max()) + 1, device=values_I.device)
    return largest_S.scatter_reduce(0, channels_I, values_I, reduce="amax")
