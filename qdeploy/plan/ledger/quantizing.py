"""The row of `qdeploy quantize`: one block at a time, in float32, calibration kept on the host.

F32 4 bytes, n sampled tokens (512), batches of B sequences of T tokens:

- block: 3 copies (as read, as simulated integers, one linear in work), the inputs of its linears on
  the sampled tokens (3 H + w, w the widest of F, A D, H) and four rows of w of a search:
  F32 (3 P_block + n (3 H + 5 w)). While the stream starts, the embeddings instead.
- kept: hidden states F32 B T H, two masks B T T, and the rotary tables, F32 4 T D, of all batches.
- running: activations F32 B T (4 H + 4 F) and attention scores F32 A B T T of one batch.

The engine asks for the sum on the host wherever it computes, and computes on the first GPU where
there is one; block and running batch then lie there too. It is the estimate that `qdeploy quantize`
makes of itself before it starts, for its default of 64 samples.
"""

from __future__ import annotations

from qdeploy.models.family import family_of
from qdeploy.models.shape import ModelShape
from qdeploy.plan.ledger.machine import (
    PROCESS_BYTES,
    PROCESSES,
    SIDE_FILES_BYTES,
    WEIGHTS_ON_DISK,
    Machine,
)
from qdeploy.plan.ledger.schema import Need, Place, Stage, needed

_F32 = 4
_SAMPLED_TOKENS = 512
_SAMPLES, _BATCH, _TOKENS = 64, 8, 512
_SPREAD = {
    "block": (15, 15),
    "calibration": (5, 5),
    "running batch": (50, 25),
    "CUDA context": (50, 60),
    **PROCESSES,
}


def quantizing(machine: Machine) -> Stage:
    """What quantizing to INT8 needs; on the CPU where one GPU is too small for a block."""
    shape = machine.shape
    sizes = [(_BATCH, min(_TOKENS, shape.max_positions))] * (_SAMPLES // _BATCH)
    block = max(_F32 * shape.embedding_parameters, block_bytes(shape, _SAMPLED_TOKENS))
    running = running_bytes(shape, sizes)
    on_gpu = needed(
        {"CUDA context": machine.context_bytes, "block": block, "running batch": running},
        _SPREAD,
        machine.gpu_bytes,
    )
    host = {
        "processes": PROCESS_BYTES,
        "block": block,
        "calibration": kept_bytes(shape, sizes),
        "running batch": running,
    }
    needs: dict[Place, Need] = {"GPU": on_gpu} if on_gpu.fits else {}
    needs["host"] = needed(host, _SPREAD, machine.host_bytes)
    needs["disk"] = needed(
        {
            "source": machine.source_bytes,
            "result": machine.quantized_bytes,
            "other files": SIDE_FILES_BYTES,
        },
        WEIGHTS_ON_DISK,
        machine.disk_bytes,
    )
    how = "int8, block by block, " + ("1 GPU" if on_gpu.fits else "on the CPU, the GPU hidden")
    return Stage(name="quantize", how=how, needs=needs, refusal=_refusal(shape))


def block_bytes(shape: ModelShape, sampled_tokens: int) -> int:
    """One block in work."""
    widest = max(shape.intermediate_size, shape.heads * shape.head_dim, shape.hidden_size)
    rows = 3 * shape.hidden_size + 5 * widest
    return _F32 * (3 * shape.block_parameters + sampled_tokens * rows)


def kept_bytes(shape: ModelShape, sizes: list[tuple[int, int]]) -> int:
    """Hidden states, masks and rotary tables of batches of (sequences, tokens)."""
    return sum(
        _F32 * rows * tokens * shape.hidden_size
        + 2 * rows * tokens * tokens
        + 4 * _F32 * tokens * shape.head_dim
        for rows, tokens in sizes
    )


def running_bytes(shape: ModelShape, sizes: list[tuple[int, int]]) -> int:
    """Activations and attention scores of the largest of the batches."""
    inner = 4 * shape.hidden_size + 4 * shape.intermediate_size
    return max(_F32 * rows * n * (inner + n * shape.heads) for rows, n in sizes)


def _refusal(shape: ModelShape) -> str | None:
    if family_of({"model_type": shape.family}).transposed:
        return (
            f"the linear layers of {shape.family} are Conv1D modules, which no reader of "
            "compressed-tensors loads as integers"
        )
    return None
