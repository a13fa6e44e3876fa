"""What there is, and what every stage needs of the host beside its own data."""

from __future__ import annotations

from dataclasses import dataclass

from qdeploy.core.units import GIB, MIB
from qdeploy.models.shape import ModelShape
from qdeploy.plan.gpu import Gpu
from qdeploy.plan.ledger.schema import Spread
from qdeploy.plan.rank import Rank
from qdeploy.plan.terms.framework import CONTEXT_BYTES
from qdeploy.plan.terms.serving_weights import serving_weights_bytes

PROCESS_BYTES = GIB
"""A Python process with PyTorch and transformers imported, and the allocator's slack."""
SIDE_FILES_BYTES = 64 * MIB
"""Tokenizer, configuration and manifest beside weights; the samples of an evaluation."""
WEIGHTS_ON_DISK: Spread = dict.fromkeys(
    ("source", "result", "checkpoints", "swapped states", "other files"), (0, 1)
)
"""Known to the byte but for headers and alignment."""
PROCESSES: Spread = {"processes": (50, 100)}
"""0.4 GiB of imported libraries on a CPU were measured; CUDA's libraries come on top."""


@dataclass(frozen=True)
class Machine:
    """One node, and the model that goes through all stages on it."""

    shape: ModelShape
    parameters: int
    gpu: Gpu
    gpus: int
    """Of the node."""
    host_bytes: int | None
    """Memory of the node; None: not judged."""
    disk_bytes: int | None
    """Space for weights, checkpoints and results; None: not judged."""
    occupied_bytes: int = 0
    """Memory of each GPU that something else holds."""
    context_bytes: int = CONTEXT_BYTES
    """An empty CUDA context."""

    @property
    def gpu_bytes(self) -> int:
        """Free memory of one GPU."""
        return max(0, self.gpu.memory_bytes - self.occupied_bytes)

    @property
    def rank(self) -> Rank:
        """The undivided model."""
        return Rank(self.shape, surplus=self.parameters - self.shape.parameters)

    @property
    def source_bytes(self) -> int:
        """The model's files in 16 bits."""
        return 2 * self.parameters

    @property
    def quantized_bytes(self) -> int:
        """The files that `qdeploy quantize` writes: experts, head and embeddings in 16 bits."""
        return serving_weights_bytes(self.rank, "int8", experts=False)
