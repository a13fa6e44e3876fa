"""The rows of serving, one for each form of the weights.

On the host: an API process and a worker for each GPU, and two copies of the largest layer on their
way to it (weights are streamed from mapped files). Replicas beyond the first take as much again.
"""

from __future__ import annotations

from qdeploy.plan.ledger.machine import (
    PROCESS_BYTES,
    PROCESSES,
    SIDE_FILES_BYTES,
    WEIGHTS_ON_DISK,
    Machine,
)
from qdeploy.plan.ledger.schema import Stage, needed
from qdeploy.plan.serving import SPREAD, ServingTarget, place
from qdeploy.plan.terms.buffers import largest_layer
from qdeploy.plan.terms.serving_weights import ServedAs, serving_weights_bytes

_HOST = {"loading": (100, 0), **PROCESSES}


def serving(machine: Machine, served_as: ServedAs, target: ServingTarget) -> Stage:
    """What one replica needs that carries `target`."""
    placed = place(
        machine.rank,
        served_as,
        target,
        machine.gpu,
        machine.gpus,
        occupied_bytes=machine.occupied_bytes,
    )
    whole = serving_weights_bytes(machine.rank, served_as, experts=target.quantized_experts)
    host = {
        "processes": (placed.tensor + 1) * PROCESS_BYTES,
        "loading": placed.tensor * 2 * 2 * largest_layer(machine.shape),
    }
    gpus = f"{placed.tensor} x {machine.gpu.name}"
    gpus += "" if placed.tensor == 1 else ", tensor parallel"
    return Stage(
        name=f"serve {served_as}",
        how=f"{gpus}; {target.concurrency} requests of {target.context} tokens",
        needs={
            "GPU": needed(placed.parts.parts, SPREAD, placed.room_bytes),
            "host": needed(host, _HOST, machine.host_bytes),
            "disk": needed(
                {"result": whole, "other files": SIDE_FILES_BYTES},
                WEIGHTS_ON_DISK,
                machine.disk_bytes,
            ),
        },
    )
