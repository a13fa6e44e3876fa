"""GPUs by name: `gpus/NAME.toml` is a GPU called NAME, with aliases that must match exactly.

No substrings: 'L40' is not 'L4'. Case, spaces, dashes and underscores do not matter.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from dataclasses import dataclass

from pydantic import Field

from qdeploy.core.errors import InputError, UnknownNameError
from qdeploy.core.plugins import plugin_names
from qdeploy.core.schema import Schema, validate
from qdeploy.core.toml import read_toml
from qdeploy.core.units import GIB, MIB

_PACKAGE = "qdeploy.plan.gpus"
_COUNTED = re.compile(r"\s*(?:(\d{1,6})\s*[x×*]\s*)?(\S.*?)\s*", re.IGNORECASE)
# '8x', '-2xT4', '2.5xA10', 'A10x2' or the 2 of '4090x2'; the x of RTX and GTX does not count.
_MISCOUNTED = re.compile(r"[-+.\d]+\s*[x×*].*|.*(?<![rg]t)[x×*]\s*\d+|\d{1,3}", re.IGNORECASE)
_BETWEEN_KINDS = re.compile("[,、]")
_FIRST_WITH_BF16 = (8, 0)
_HINT = "write COUNTxNAME, for example 2xA100-80GB"


class Gpu(Schema):
    """One GPU. Speeds are dense peaks of the tensor cores, where it has them, in 10^12 a second.

    Floating-point products are accumulated in FP32, as in training: GeForce cards then run at
    half the rate of their FP16 accumulation.
    """

    name: str
    aliases: tuple[str, ...]
    memory_mib: int = Field(gt=0)
    """What CUDA reports as the device's total under Linux, less than the marketing number; from
    the low end of public logs, since newer drivers keep more for themselves."""
    memory_source: str
    marketing_gb: int = Field(gt=0)
    compute_capability: tuple[int, int]
    fp32_tflops: float | None = Field(default=None, gt=0)
    """FP32 outside the tensor cores, TF32 not counted."""
    fp16_tflops: float = Field(gt=0)
    bf16_tflops: float | None = Field(default=None, gt=0)
    fp8_tflops: float | None = Field(default=None, gt=0)
    int8_tops: float | None = Field(default=None, gt=0)
    memory_bandwidth_gb_s: float = Field(gt=0)
    nvlink_gb_s: float | None = Field(default=None, gt=0)
    """Between GPUs, all links, both directions together; None where it is only an option."""
    pcie_gb_s: float = Field(gt=0)
    """To the host, both directions together."""
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

    Raises UnknownNameError with the nearest names.
    """
    wanted, names = _folded(name), gpu_names()
    for known in names:
        if _folded(known) == wanted:
            return _load(known)
    for known in names:
        if wanted in map(_folded, _aliases(known)):
            return _load(known)
    raise _unknown(name, names)


def parse_gpus(text: str) -> GpuCount:
    """`2xA100-80GB` as a count and a name, not looked up; a bare name is one. Raises InputError."""
    found = _COUNTED.fullmatch(unicodedata.normalize("NFKC", text))
    if found is None or _MISCOUNTED.fullmatch(found[2]):
        raise InputError(f"no count and name of GPUs in {text!r}", hint=_HINT)
    if _BETWEEN_KINDS.search(found[2]):
        raise InputError(f"{text!r} names more than one kind of GPU", hint=_HINT)
    count = int(found[1]) if found[1] else 1
    if count < 1:
        raise InputError(f"{text!r} asks for {count} GPUs", hint="ask for at least one")
    return GpuCount(count, found[2])


def parse_mixed(text: str) -> tuple[GpuCount, str | None]:
    """`2xA100-80GB,4xL40S` as six of the kind with the least memory, and a warning.

    One kind, if written in several parts, adds up and gives no warning. Raises InputError for
    malformed text and for kinds of which only some have BF16, UnknownNameError for a name.
    """
    parts = _BETWEEN_KINDS.split(unicodedata.normalize("NFKC", text))
    if len(parts) == 1:
        return parse_gpus(text), None
    if not all(part.strip() for part in parts):
        raise InputError(f"an empty part in {text!r}", hint="write 2xA100-80GB,4xL40S")
    counts: dict[str, int] = {}
    kinds: dict[str, Gpu] = {}
    for part in map(parse_gpus, parts):
        gpu, _ = find_gpu(part.name)
        kinds[gpu.name] = gpu
        counts[gpu.name] = counts.get(gpu.name, 0) + part.count
    _require_one_precision(list(kinds.values()))
    smallest = min(kinds.values(), key=lambda gpu: (gpu.memory_mib, gpu.fp16_tflops))
    together = GpuCount(sum(counts.values()), smallest.name)
    return together, _mixed_warning(counts, smallest) if len(kinds) > 1 else None


def _require_one_precision(kinds: list[Gpu]) -> None:
    without = [gpu.name for gpu in kinds if not gpu.has_bf16]
    having = [gpu.name for gpu in kinds if gpu.has_bf16]
    if having and without:
        raise InputError(
            f"{', '.join(having)} can train in BF16 and {', '.join(without)} cannot, "
            "but all ranks must use one precision",
            hint="plan for each kind by itself",
        )


def _mixed_warning(counts: dict[str, int], smallest: Gpu) -> str:
    written = ", ".join(f"{count}x{name}" for name, count in counts.items())
    return (
        f"mixed GPUs ({written}): every rank gets the memory of the smallest card, "
        f"{smallest.name} ({smallest.memory_bytes / GIB:.1f} GiB), and the slowest sets the pace"
    )


def _load(name: str) -> tuple[Gpu, str]:
    data, digest = read_toml(_PACKAGE, name)
    return validate(Gpu, {"name": name, **data}, f"gpus/{name}.toml"), digest


def _aliases(name: str) -> list[str]:
    data, _ = read_toml(_PACKAGE, name)
    return list(data["aliases"])


def _unknown(name: str, names: list[str]) -> UnknownNameError:
    error = UnknownNameError("GPU", name, names)
    wanted = _folded(name)
    spellings = {_folded(alias): known for known in names for alias in (known, *_aliases(known))}
    within = sorted(
        (one for one in spellings if wanted in one), key=lambda one: (one.find(wanted), len(one))
    )
    near = [*within, *difflib.get_close_matches(wanted, spellings, n=3, cutoff=0.75)]
    known = list(dict.fromkeys(spellings[one] for one in near))[:4] if wanted else []
    if known:
        meant = " or ".join(map(repr, known))
        error.hint = f"did you mean {meant}? choices: {', '.join(names)}"
    return error


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "", unicodedata.normalize("NFKC", name)).casefold()
