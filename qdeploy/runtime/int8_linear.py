"""A linear layer in W8A8: int8 weights per output channel, int8 activations per token.

    y = (q_x @ q_w^T) * scale_x * scale_w + bias

The product is exact integer arithmetic (`int_mm`); scales and bias are applied in float32. Query,
key and value layers, or gate and up, read the same activation: it is quantized once for all.
"""

from __future__ import annotations

from torch import Tensor, nn

from qdeploy.core.affine import QuantizedTensor
from qdeploy.runtime.int_mm import IntWeight, Kernel


class Activations:
    """Quantizes activations and remembers the last one; shared by the layers of a model."""

    def __init__(self) -> None:
        self._x: Tensor | None = None
        self._version = -1
        self._quantized: tuple[Tensor, Tensor] | None = None

    def quantized(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`quantize_rows` of `x` [..., I] with its leading sizes as one."""
        if self._quantized is None or self._x is not x or self._version != x._version:
            self._quantized = quantize_rows(x.reshape(-1, x.shape[-1]))
            self._x, self._version = x, x._version
        return self._quantized


class Int8Linear(nn.Module):
    """Stands in for an `nn.Linear` [in_features I, out_features O]; takes and gives float32."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: QuantizedTensor,
        bias_O: Tensor | None,
        *,
        resident: bool = True,
        kernel: Kernel | None = None,
        activations: Activations | None = None,
    ) -> None:
        """`resident` and `kernel` as in `IntWeight`, `activations` shared with other layers; they
        change speed and memory, no result.
        """
        super().__init__()
        self.out_features, self.in_features = weight.q.shape
        self.register_buffer("weight", weight.q)
        self.register_buffer("scale", weight.scale.float().flatten())
        self.register_buffer("bias", None if bias_O is None else bias_O.float())
        self._activations = activations or Activations()
        self._product = IntWeight(weight.q, resident=resident, kernel=kernel)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., I] float32 -> [..., O] float32."""
        q_MI, scale_M1 = self._activations.quantized(x)
        y_MO = self._product.product(q_MI).mul_(scale_M1).mul_(self.scale)
        if self.bias is not None:
            y_MO.add_(self.bias)
        return y_MO.view(*x.shape[:-1], self.out_features)


def quantize_rows(x_MI: Tensor) -> tuple[Tensor, Tensor]:
    """`core.affine.quantize_per_token` with the integers left in float32, in few passes.

    Gives q [M, I] and scale [M, 1]. NaN and infinity in a row make the row's results NaN.
    """
    scale_M1 = x_MI.abs().amax(-1, keepdim=True).div_(127.5)
    scale_M1.masked_fill_(scale_M1 == 0, 1.0)
    return (x_MI / scale_M1).round_().clamp_(-128, 127), scale_M1
