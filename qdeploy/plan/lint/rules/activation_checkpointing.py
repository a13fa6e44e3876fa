"""activation_checkpointing is read by DeepSpeed's own checkpoint function alone.

Models of transformers call torch.utils.checkpoint, which knows nothing of the block.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdeploy.core.units import format_bytes
from qdeploy.plan.lint.case import Case, Finding, block

_KEYS = ("cpu_checkpointing", "partition_activations", "contiguous_memory_optimization")


def check(case: Case) -> Iterator[Finding]:
    """Settings of the block that do nothing here."""
    wanted = [key for key in _KEYS if block(case.config, "activation_checkpointing").get(key)]
    if not wanted or case.request.trainer != "hf":
        return
    job = case.job
    inputs = job.compute_bytes * job.tokens * job.shape.hidden_size * job.shape.layers
    for key in wanted:
        moved = key == "cpu_checkpointing"
        yield Finding(
            severity="warning",
            key=f"activation_checkpointing.{key}",
            message="no effect on models of transformers, which use PyTorch's checkpointing"
            + (f": the blocks' inputs, {format_bytes(inputs)}, stay on the GPU" if moved else ""),
            advice="turn on gradient_checkpointing in the trainer",
        )
