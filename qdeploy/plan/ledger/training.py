"""The row of training: the plan's choice, and the checkpoints that it leaves on the disk.

- DeepSpeed's checkpoint: the 16-bit weights of what is trained, FP32 masters and the optimizer's
  states (engine.py, save_checkpoint), beside the 16-bit model that transformers' Trainer saves: for
  AdamW in mixed precision 2 + 4 + 8 + 2 = 16 bytes a parameter. Frozen weights are left out with
  adapters (exclude_frozen_parameters).
- PyTorch without DeepSpeed: the trained weights as they are held (FP32, 4 bytes), and the states.
- The Trainer writes a checkpoint before it deletes the oldest (trainer.py, _save_checkpoint), so
  one more than `save_total_limit` lies there for a while.
- The result is the whole model in 16 bits, adapters merged into it.

Host memory is the plan's, at the start or in the steady state, whichever is more. Its interval goes
down only: a half if the model loads in 16 bits, a third without the buffers of offload.
"""

from __future__ import annotations

from typing import cast

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout, find_strategy
from qdeploy.plan.ledger.machine import (
    PROCESS_BYTES,
    PROCESSES,
    SIDE_FILES_BYTES,
    WEIGHTS_ON_DISK,
    Machine,
)
from qdeploy.plan.ledger.schema import Need, Stage, needed
from qdeploy.plan.request import Offload
from qdeploy.plan.schema import PARTS, Candidate, Plan
from qdeploy.plan.terms.optimizer import states_bytes

_HOST = {"loading": (50, 0), "offloaded": (33, 0), **PROCESSES}


def training(plan: Plan, job: Job, machine: Machine, kept_checkpoints: int) -> Stage:
    """What the plan's choice needs; when nothing fits, what the smallest layout would."""
    candidate = plan.chosen or min(plan.candidates, key=lambda c: c.per_gpu.need_bytes)
    layout = Layout(
        find_strategy(candidate.strategy),
        cast("Offload", candidate.offload),
        candidate.checkpointing,
    )
    return Stage(
        name="train",
        how=_how(candidate) + ("" if plan.chosen else ", the smallest that was planned"),
        needs={
            "GPU": _on_gpu(plan, candidate),
            "host": _on_host(candidate, machine),
            "disk": needed(
                {
                    "source": machine.source_bytes,
                    "checkpoints": (kept_checkpoints + 1) * checkpoint_bytes(job, layout)
                    if kept_checkpoints
                    else 0,
                    "swapped states": candidate.nvme_bytes,
                    "result": machine.source_bytes,
                    "other files": SIDE_FILES_BYTES,
                },
                WEIGHTS_ON_DISK,
                machine.disk_bytes,
            ),
        },
    )


def checkpoint_bytes(job: Job, layout: Layout) -> int:
    """Files of one checkpoint that training can go on from."""
    trained = job.trainable
    states = states_bytes(job, layout, trained)
    if not layout.deepspeed:
        return (job.adapter_bytes if job.peft else 2 if job.pure else 4) * trained + states
    return (job.compute_bytes + 4 + job.compute_bytes) * trained + states


def _how(candidate: Candidate) -> str:
    offload = "" if candidate.offload == "none" else f", {candidate.offload} on the host"
    way = "with" if candidate.checkpointing else "without"
    return f"{candidate.strategy}{offload}, {way} checkpointing"


def _on_gpu(plan: Plan, candidate: Candidate) -> Need:
    parts = candidate.per_gpu
    sizes = {part: getattr(parts, f"{part}_bytes") for part in PARTS}
    return Need(
        parts={name: size for name, size in sizes.items() if size},
        low_bytes=parts.low_bytes,
        total_bytes=parts.total_bytes,
        high_bytes=parts.high_bytes,
        need_bytes=parts.need_bytes,
        capacity_bytes=plan.capacity_bytes,
    )


def _on_host(candidate: Candidate, machine: Machine) -> Need:
    steady, start = candidate.host_bytes, candidate.host_init_bytes
    own = {"offloaded": steady} if steady >= start else {"loading": start}
    parts = {**own, "processes": machine.gpus * PROCESS_BYTES}
    return needed(parts, _HOST, machine.host_bytes)
