"""GPUs by name: `gpus/NAME.toml` is a GPU called NAME, with aliases that must match exactly.

No substrings: 'L40' is not 'L4'. Case, spaces, dashes and underscores do not matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import Field

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.schema import Schema, validate
from qdeploy.core.toml import read_toml
from qdeploy.core.units import MIB

_PACKAGE = "qdeploy.plan.gpus"
_COUNTED = re.compile(r"\s*(?:(\d+)\s*[xX×]\s*)?(\S.*?)\s*")
_FIRST_WITH_BF16 = (8, 0)


class Gpu(Schema):
    """One GPU. Speeds are dense tensor-core peaks; links are both directions together."""

    name: str
    aliases: tuple[str, ...]
    memory_mib: int = Field(gt=0)
    """What CUDA reports as the device's total; less than the marketing number."""
    memory_source: str
    marketing_gb: int = Field(gt=0)
    compute_capability: tuple[int, int]
    fp16_tflops: float = Field(gt=0)
    bf16_tflops: float | None = None
    int8_tops: float | None = None
    memory_bandwidth_gb_s: float = Field(gt=0)
    nvlink_gb_s: float | None = None
    pcie_gb_s: float = Field(gt=0)
    source: str

    @property
    def memory_bytes(self) -> int:
        """Usable memory in bytes."""
        return self.memory_mib * MIB

    @property
    def has_bf16(self) -> bool:
        """BF16 in hardware: compute capability 8.0 and up, emulation not counted."""
        return self.compute_capability >= _FIRST_WITH_BF16


@dataclass(frozen=True)
class GpuCount:
    """`count` GPUs called `name`, as written: 2xA100-80GB."""

    count: int
    name: str


def gpu_names() -> list[str]:
    """The names of all known GPUs, sorted."""
    return plugin_names(_PACKAGE, ".toml")


def find_gpu(name: str) -> tuple[Gpu, str]:
    """The GPU called `name` and the sha256 of its table.

    Raises UnknownNameError with the nearest name.
    """
    wanted = _folded(name)
    for known in gpu_names():
        data, digest = read_toml(_PACKAGE, known)
        if wanted in {_folded(alias) for alias in (known, *data["aliases"])}:
            return validate(Gpu, {"name": known, **data}, f"gpus/{known}.toml"), digest
    raise UnknownNameError("GPU", name, gpu_names())


def parse_gpus(text: str) -> GpuCount:
    """`2xA100-80GB` as a count and a name; a bare name is one. Raises InputError."""
    found = _COUNTED.fullmatch(text)
    if found is None:
        raise InputError(f"no GPUs in {text!r}", hint="write COUNTxNAME, for example 2xA100-80GB")
    count = int(found[1]) if found[1] else 1
    if count < 1:
        raise InputError(f"{text!r} asks for {count} GPUs", hint="ask for at least one")
    return GpuCount(count, found[2])


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip()).casefold()
