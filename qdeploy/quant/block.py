"""One decoder block while it is quantized: what algorithms read and change.

Shapes: O out_features, I in_features, N sampled tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from qdeploy.core.affine import QuantizedTensor, dequantize, round_trip_per_token
from qdeploy.core.scheme import Scheme
from qdeploy.models.family import Family, SmoothingPair
from qdeploy.models.shape import ModelShape
from qdeploy.quant.manifest import SmoothingRecord
from qdeploy.quant.skeleton import StopForward
from qdeploy.quant.stream import Stream


@dataclass
class LinearInput:
    """What flows into a linear layer of the unquantized block, over all real tokens."""

    absmax: Tensor
    """Largest magnitude of each input channel, [I]."""
    rows: Tensor
    """The input on the sampled tokens, [N, I]."""


@dataclass
class BlockWork:
    """A block in float32, the inputs of its linears, and the results so far.

    Linears and other modules are named as inside the block: 'mlp.up_proj'.
    """

    name: str
    index: int
    module: nn.Module
    family: Family
    shape: ModelShape
    scheme: Scheme
    linears: list[str]
    """Those to quantize, in the order in which they run."""
    dtypes: dict[str, torch.dtype]
    """Stored dtype of each parameter of the block."""
    inputs: dict[str, LinearInput] = field(default_factory=dict)
    quantized: dict[str, QuantizedTensor] = field(default_factory=dict)
    methods: dict[str, list[str]] = field(default_factory=dict)
    smoothing: list[SmoothingRecord] = field(default_factory=list)

    def pairs(self) -> list[SmoothingPair]:
        """The family's smoothing pairs of which every linear, the source too, is quantized."""
        left_alone = set(self.family.linears) - set(self.linears)
        return [p for p in self.family.pairs if not left_alone & {p.source, *p.linears}]

    def weight(self, linear: str) -> Tensor:
        """The weight as [O, I]: a view, also of a Conv1D's [I, O]."""
        weight = self.parameter(linear, "weight")
        return weight.T if self.family.transposed else weight

    def parameter(self, module: str, name: str) -> Tensor:
        """A parameter of a module of the block."""
        return self.module.get_submodule(module).get_parameter(name).data

    def bias(self, module: str) -> Tensor | None:
        """The bias of a linear or a norm, or None."""
        bias = getattr(self.module.get_submodule(module), "bias", None)
        return None if bias is None else bias.data

    def note_method(self, linear: str, method: str) -> None:
        """`method` had a part in the values of `linear`."""
        self.methods.setdefault(linear, []).append(method)

    def leader(self, linear: str) -> str:
        """The first linear that reads the same activation as `linear`."""
        for pair in self.pairs():
            if linear in pair.linears:
                return pair.linears[0]
        return linear


@torch.inference_mode()
def record_inputs(work: BlockWork, stream: Stream) -> None:
    """Fill `work.inputs`: run the unquantized block over the stream, up to its last linear."""
    leaders = dict.fromkeys(work.leader(linear) for linear in work.linears)
    parts: dict[str, list[Tensor]] = {name: [] for name in leaders}
    absmax: dict[str, Tensor] = {}
    real = sampled = torch.empty(0)

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].reshape(-1, args[0].shape[-1])
            here = x.abs()[real].amax(dim=0)
            absmax[name] = torch.maximum(absmax[name], here) if name in absmax else here
            parts[name].append(x[sampled])
            if name == work.leader(work.linears[-1]):
                raise StopForward

        return note

    hooks = [
        work.module.get_submodule(name).register_forward_pre_hook(watch(name)) for name in leaders
    ]
    for batch in stream.batches:
        real, sampled = batch.real.to(stream.device), batch.sampled.to(stream.device)
        with suppress(StopForward):
            stream.run(batch, work.module, work.index)
    for hook in hooks:
        hook.remove()
    recorded = {name: LinearInput(absmax[name], torch.cat(parts[name])) for name in leaders}
    work.inputs = {linear: recorded[work.leader(linear)] for linear in work.linears}


class _Rounding:
    """Quantizes activations (`quantized`); linears that read the same tensor share the result."""

    def __init__(self, *, quantized: bool) -> None:
        self._quantized = quantized
        self._x: Tensor | None = None
        self._rounded: Tensor | None = None
        self.sampled: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if not self._quantized:
            return x
        if self._rounded is None or self._x is not x:
            self._x, self._rounded = x, round_trip_per_token(x)
        return self._rounded


class SimulatedLinear(nn.Module):
    """A linear layer with integer weights and, by the scheme, activations, in float32.

    Beside its output it gathers the error against the float weights on the sampled tokens.
    """

    def __init__(
        self, qt: QuantizedTensor, w_OI: Tensor, bias: Tensor | None, rounding: _Rounding
    ) -> None:
        super().__init__()
        self._w_quantized_OI = dequantize(qt, torch.float32)
        self._w_OI = w_OI
        self._bias = bias
        self._rounding = rounding
        self._error = 0.0
        self._power = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        y = nn.functional.linear(self._rounding(x), self._w_quantized_OI, self._bias)
        rows = self._rounding.sampled
        exact = nn.functional.linear(x.reshape(-1, x.shape[-1])[rows], self._w_OI, self._bias)
        difference = y.reshape(-1, y.shape[-1])[rows] - exact
        self._error += float(difference.square().sum())
        self._power += float(exact.square().sum())
        return y

    @property
    def output_error(self) -> float:
        """||Y_q - Y||^2 / ||Y||^2 so far; 0 where both are zero."""
        return self._error / self._power if self._power else 0.0


@torch.inference_mode()
def run_quantized(work: BlockWork, stream: Stream) -> dict[str, float]:
    """Run the quantized block: its outputs become the next block's inputs.

    Returns each linear's relative output error. Raises RunError for non-finite outputs.
    """
    rounding = _Rounding(quantized=work.scheme.activations is not None)
    simulated = {}
    for linear in work.linears:
        new = SimulatedLinear(
            work.quantized[linear], work.weight(linear), work.bias(linear), rounding
        )
        simulated[linear] = new
        work.module.set_submodule(linear, new)
    for batch in stream.batches:
        rounding.sampled = batch.sampled.to(stream.device)
        stream.advance(batch, stream.run(batch, work.module, work.index), work.name)
    return {linear: module.output_error for linear, module in simulated.items()}
