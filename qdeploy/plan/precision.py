"""Number formats: BF16 where the hardware has it, else FP16 with loss scaling.

FP16's largest number is 65504 and its smallest normal one about 6e-5, so small gradients need a
scaled loss and Adam an eps that does not vanish; BF16 has FP32's range and needs neither.
"""

from __future__ import annotations

from qdeploy.core.errors import InputError
from qdeploy.plan.gpu import Gpu
from qdeploy.plan.request import PrecisionName
from qdeploy.plan.schema import Precision

_ADAM_EPS = 1e-8
_ADAM_EPS_FP16 = 1e-6


def choose_precision(asked: PrecisionName, gpu: Gpu) -> Precision:
    """The formats of a run on `gpu`.

    Mixed BF16 becomes FP16 where the GPU has no BF16. Raises InputError for pure BF16 there.
    """
    capability = ".".join(map(str, gpu.compute_capability))
    if asked == "fp32":
        return _precision("fp32", "FP32 was asked for", scaled=False)
    if asked == "fp16":
        return _precision("fp16", "FP16 was asked for", scaled=True)
    if gpu.has_bf16:
        reason = f"{gpu.name} has BF16 (compute capability {capability})"
        return _precision("bf16", reason, scaled=False)
    if asked == "bf16-pure":
        raise InputError(
            f"{gpu.name} has no BF16: compute capability {capability}, 8.0 is needed",
            hint="use precision fp16 (mixed, with loss scaling) or fp32",
        )
    reason = (
        f"{gpu.name} has no BF16 (compute capability {capability}, 8.0 is needed), so FP16 with "
        "dynamic loss scaling"
    )
    return _precision("fp16", reason, scaled=True)


def _precision(dtype: str, reason: str, *, scaled: bool) -> Precision:
    return Precision.model_validate(
        {
            "dtype": dtype,
            "reason": reason,
            "loss_scaling": "dynamic" if scaled else "none",
            "adam_eps": _ADAM_EPS_FP16 if scaled else _ADAM_EPS,
        }
    )
