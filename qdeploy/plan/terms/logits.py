"""Logits and the chain of the loss, by the loss's own file; see `qdeploy.plan.losses`.

With tensor parallelism the head is divided over the vocabulary, and the loss with it. A pipeline
has the loss on its last stage. Classification has a row of labels for a sequence: nothing.
"""

from __future__ import annotations

from qdeploy.plan.job import Job
from qdeploy.plan.losses import LossRun


def logits_bytes(job: Job) -> int:
    """Logits and loss chain of one micro-batch."""
    if job.shape.task != "causal_lm" or job.stage == "first":
        return 0
    run = LossRun(
        tokens=job.tokens,
        vocabulary=-(-job.shape.vocab_size // job.rank.tensor),
        hidden_size=job.shape.hidden_size,
        compute_bytes=job.compute_bytes,
        head_trained=job.head_trained,
        sequences=job.micro_batch,
        compiled=job.request.compile,
    )
    # Soft-capped logits keep what went into the tanh.
    capped = job.compute_bytes * run.vocabulary * run.tokens if job.shape.logit_softcap else 0
    return job.loss.loss_bytes(run) + capped
