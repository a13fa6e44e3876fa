"""The moments of a training step at which memory can peak, and what is there at each.

- loss: all activations are kept, the logits and their gradients are there.
- backward: the first block's backward pass has just begun, the logits are gone; with checkpointing
  the block's own activations have come back. The head's gradient is there.
- end: the last block's backward pass: all gradients, one block's activations.
- step: no activations; the optimizer's own copies.

The peak of a run is the largest of these, not the sum of everything that is there at some time.
"""

from __future__ import annotations

from typing import Literal, get_args

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.terms.activations import kept_bytes, recomputed_bytes, working_bytes
from qdeploy.plan.terms.buffers import (
    buffers_in_backward_bytes,
    buffers_in_forward_bytes,
    permanent_buffers_bytes,
)
from qdeploy.plan.terms.gradients import (
    gradient_bytes,
    gradients_in_backward_bytes,
    gradients_in_forward_bytes,
    gradients_in_step_bytes,
    step_copy_bytes,
)
from qdeploy.plan.terms.logits import logits_bytes
from qdeploy.plan.terms.master_weights import master_weights_bytes
from qdeploy.plan.terms.optimizer import optimizer_bytes, step_copies_bytes
from qdeploy.plan.terms.weights import weights_bytes

Moment = Literal["loss", "backward", "end", "step"]


def moments(job: Job, layout: Layout) -> dict[Moment, dict[str, int]]:
    """What is there at each moment: part -> bytes on one GPU."""
    states = {
        "weights": weights_bytes(job, layout),
        "master_weights": master_weights_bytes(job, layout),
        "optimizer": optimizer_bytes(job, layout),
    }
    kept = kept_bytes(job, layout)
    passing = {
        "loss": _at_the_loss(job, layout, kept),
        **_in_the_backward_pass(job, layout, kept),
        "step": _at_the_step(job, layout),
    }
    return {moment: {**states, **passing[moment]} for moment in get_args(Moment)}


def _at_the_loss(job: Job, layout: Layout, kept: int) -> dict[str, int]:
    return {
        "gradients": gradients_in_forward_bytes(job, layout),
        "activations": kept,
        "logits": logits_bytes(job),
        "buffers": buffers_in_forward_bytes(job, layout),
    }


def _in_the_backward_pass(job: Job, layout: Layout, kept: int) -> dict[str, dict[str, int]]:
    """At its beginning and at its end."""
    block = recomputed_bytes(job, layout) + working_bytes(job, layout)
    buffers = buffers_in_backward_bytes(job, layout)
    every = gradients_in_backward_bytes(job, layout)
    first = gradients_in_forward_bytes(job, layout) + _head_gradient_bytes(job, layout)
    return {
        "backward": {
            "gradients": min(first, every),
            "activations": kept + block,
            "logits": 0,
            "buffers": buffers,
        },
        "end": {
            "gradients": every,
            "activations": kept // sum(job.rank.blocks) + block,
            "logits": 0,
            "buffers": buffers,
        },
    }


def _at_the_step(job: Job, layout: Layout) -> dict[str, int]:
    copies = step_copy_bytes(job, layout) + step_copies_bytes(job, layout)
    return {
        "gradients": gradients_in_step_bytes(job, layout) + copies,
        "activations": 0,
        "logits": 0,
        "buffers": permanent_buffers_bytes(job, layout),
    }


def _head_gradient_bytes(job: Job, layout: Layout) -> int:
    """The head's gradient, the first one of a backward pass."""
    if not job.head_trained or job.request.optimizer_in_backward or layout.offload != "none":
        return 0
    shape = job.shape
    if job.accumulation > 1 or job.stage == "first":
        return 0
    rows = shape.vocab_size if shape.task == "causal_lm" else shape.labels
    return gradient_bytes(job, layout) * (rows * shape.hidden_size // job.rank.tensor)
