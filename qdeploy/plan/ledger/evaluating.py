"""The row of `qdeploy eval`: BF16 and INT8 one after the other, in float32, on one GPU.

The arithmetic of a comparison is float32 whatever the weights are stored in, so the baseline holds
4 bytes a parameter, the INT8 model a byte for each quantized weight, a float32 scale for each
output, and 4 for all else. Two moments count:

- answers: the baseline, a batch of 16384 tokens with its key-value cache (L K (D + value width) x 4
  bytes, with half as much room to grow) and the tensors of one pass over it.
- screen: baseline and INT8 model side by side on one text of up to 1024 tokens, two float32 tables
  of tokens x vocabulary for each.

On the host a model is read in full before it moves to the GPU, 4 bytes a parameter. (6.0 were
measured for both forms; the other 2 are its mapped files, which the system drops when it must.)
"""

from __future__ import annotations

from qdeploy.models.shape import ModelShape
from qdeploy.plan.ledger.machine import (
    PROCESS_BYTES,
    PROCESSES,
    SIDE_FILES_BYTES,
    WEIGHTS_ON_DISK,
    Machine,
)
from qdeploy.plan.ledger.schema import Need, Place, Spread, Stage, needed
from qdeploy.plan.terms.serving_pass import inner_numbers

_F32 = 4
_BATCH_TOKENS = 16384
_SCREEN_TOKENS = 1024
_SPREAD: Spread = {
    "baseline": (0, 1),
    "INT8 model": (0, 1),
    "kv cache": (60, 5),
    "activations": (60, 25),
    "logits": (60, 25),
    "CUDA context": (50, 60),
    **PROCESSES,
}


def evaluating(machine: Machine) -> Stage:
    """What the comparison needs; on the CPU where one GPU is too small for float32."""
    moment = max(moments(machine).values(), key=lambda parts: sum(parts.values()))
    on_gpu = needed({"CUDA context": machine.context_bytes, **moment}, _SPREAD, machine.gpu_bytes)
    needs: dict[Place, Need] = {}
    if on_gpu.fits:
        needs["GPU"] = on_gpu
        moment = {"baseline": _F32 * machine.parameters}
    needs["host"] = needed({**moment, "processes": PROCESS_BYTES}, _SPREAD, machine.host_bytes)
    needs["disk"] = needed(
        {
            "source": machine.source_bytes,
            "result": machine.quantized_bytes,
            "other files": 2 * SIDE_FILES_BYTES,
        },
        WEIGHTS_ON_DISK,
        machine.disk_bytes,
    )
    how = "float32 arithmetic, " + ("1 GPU" if on_gpu.fits else "on the CPU, the GPU hidden")
    return Stage(name="evaluate", how=how, needs=needs)


def moments(machine: Machine) -> dict[str, dict[str, int]]:
    """What is there when answers are written, and when both models are screened."""
    shape = machine.shape
    baseline = _F32 * machine.parameters
    cache = _BATCH_TOKENS * shape.kv_cache_bytes_per_token(_F32)
    text = min(_SCREEN_TOKENS, shape.max_positions)
    return {
        "answers": {
            "baseline": baseline,
            "kv cache": cache * 3 // 2,
            "activations": _pass_bytes(shape, _BATCH_TOKENS),
        },
        "screen": {
            "baseline": baseline,
            "INT8 model": running_int8_bytes(machine),
            "activations": _pass_bytes(shape, text),
            "logits": 2 * 2 * _F32 * text * shape.vocab_size,
        },
    }


def running_int8_bytes(machine: Machine) -> int:
    """The INT8 model as qdeploy runs it; experts are not quantized."""
    shape = machine.shape
    dense = shape.layers - shape.moe_layers
    quantized = scales = 0
    for linears, count in ((shape.attention_linears, shape.layers), (shape.mlp_linears, dense)):
        for linear in linears:
            quantized += count * linear.weights
            scales += count * linear.out_features
    return quantized + _F32 * (scales + machine.parameters - quantized)


def _pass_bytes(shape: ModelShape, tokens: int) -> int:
    """Residual stream, its normed copy, and the widest part of a block."""
    return _F32 * tokens * (2 * shape.hidden_size + inner_numbers(shape))
