"""The composition that `deepspeed` and `torch` share: every term, and the interval around them."""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.layout import Layout
from qdeploy.plan.request import Basis
from qdeploy.plan.schema import PerGpu
from qdeploy.plan.terms.activations import activations_bytes
from qdeploy.plan.terms.buffers import buffers_bytes
from qdeploy.plan.terms.framework import framework_bytes
from qdeploy.plan.terms.gradients import gradients_bytes, step_copy_bytes
from qdeploy.plan.terms.logits import logits_bytes
from qdeploy.plan.terms.master_weights import master_weights_bytes
from qdeploy.plan.terms.optimizer import optimizer_bytes
from qdeploy.plan.terms.weights import weights_bytes

# Part -> (share that may be missing, share that may come on top), in percent. States are known
# to the byte but for alignment; the rest from the spread of public measurements (see terms).
_SPREAD = {
    "weights": (0, 1),
    "master_weights": (0, 1),
    "gradients": (0, 1),
    "optimizer": (0, 1),
    "activations": (15, 15),
    "logits": (15, 5),
    "buffers": (60, 25),
    "framework": (50, 60),
}


def per_gpu(job: Job, layout: Layout, basis: Basis) -> PerGpu:
    """All parts on `basis`, their sum and its interval."""
    logits = logits_bytes(job)
    parts = {
        "weights": weights_bytes(job, layout),
        "master_weights": master_weights_bytes(job, layout),
        "gradients": gradients_bytes(job, layout),
        "optimizer": optimizer_bytes(job, layout),
        "activations": activations_bytes(job, layout, logits),
        "logits": logits,
        "buffers": buffers_bytes(job, layout),
    }
    dynamic = parts["activations"] + logits + parts["buffers"]
    parts["framework"] = framework_bytes(job, dynamic, basis)
    total = sum(parts.values())
    low = total - sum(size * _SPREAD[part][0] // 100 for part, size in parts.items())
    # The FP32 gradients of the step may take the room that the backward pass has left, and
    # states in unified memory may spill to the host.
    low -= min(step_copy_bytes(job, layout), dynamic)
    low -= parts["optimizer"] if job.optimizer.paged else 0
    high = total + sum(size * _SPREAD[part][1] // 100 for part, size in parts.items())
    sizes = {f"{part}_bytes": size for part, size in parts.items()}
    return PerGpu(**sizes, total_bytes=total, low_bytes=max(0, low), high_bytes=high)


def need_bytes(parts: PerGpu) -> int:
    """What must be free for the layout to fit: the high end of the interval."""
    return parts.high_bytes
