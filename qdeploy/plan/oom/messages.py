"""The wordings of out-of-memory messages.

Sources: PyTorch c10/cuda/CUDACachingAllocator.cpp (and its HIP and NPU twins), c10/core/
impl/alloc_cpu.cpp, torch/utils/data (shared memory), torch/distributed/elastic; NCCL src/include/
alloc.h; DeepSpeed runtime/utils.py and launcher/launch.py; the Linux kernel's mm/oom_kill.c; Slurm.
Numbers are matched with all white space removed, because terminals and tracebacks wrap messages
anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from qdeploy.core.units import GIB, KIB, MIB
from qdeploy.plan.oom.schema import Kind

_UNITS = {"bytes": 1, "B": 1, "KiB": KIB, "KB": KIB, "MiB": MIB, "MB": MIB, "GiB": GIB, "GB": GIB}
_SIZE = r"(\d+(?:\.\d+)?)(bytes|[KMG]i?B)"

# Every message below has one of these words in its first line.
_WORDS = (
    b"emory", b"OOM", b"oom", b"illed", b"KILL", b"ALLOC", b"MEMLOCK", b"mlock", b"to CUDA",
    b"MA ", b"alloc_cpu", b"= -9", b": -9", b"ode -9", b"tus -9", b" 137",
)  # fmt: skip
USAGE = re.compile(r"MA (\S+) GB\s+Max_MA \S+ GB\s+CA (\S+) GB")
USAGE_HOST = re.compile(r"CPU Virtual Memory:\s+used = ([\d.]+) GB, percent = ([\d.]+)%")
USAGE_LABEL = re.compile(r"see_memory_usage\] (?!MA |CPU Virtual)(.+)")

_DEVICE = re.compile(r"\b([A-Z]{2,5}) out of memory\b")
_SAID = re.compile(r"(?:^|:|Error|ERROR|Exception)\W*$")
_DEVICE_BYTES = re.compile(
    r"allocation failed with OOM on device (\d+) while trying to allocate (\d+) bytes "
    r"\(free: (\d+), total: (\d+)\)"
)
_DRIVER = re.compile(r"\b(CUDA|HIP|NPU) error: ?out of memory|hipErrorOutOfMemory")
_LIBRARY = re.compile(r"\b(?:CUBLAS|CUDNN|CUSOLVER|HIPBLAS)_STATUS_ALLOC_FAILED")
_NCCL = re.compile(
    r"(?:Cuda|CUDA|HIP) failure (?:\d+ )?'out of memory'|Failed to CUDA (?:host )?[cm]alloc"
    r"|NCCL.*\bout of memory|\bunhandled cuda error.*out of memory",
)
_NCCL_BYTES = re.compile(r"Failed to CUDA (?:host )?[cm]alloc(?: async)? (\d+) bytes")
_PINNED = re.compile(r"RLIMIT_MEMLOCK|\bmlock\b.*(?:fail|Cannot allocate)|unable to (?:m)?lock ")
_PINNED_CALL = re.compile(r"pin_memory|cudaHostAlloc|cudaHostRegister|hipHostMalloc|CachingHost")
_HOST_BYTES = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate "
    r"(\d+) bytes"
)
_HOST = re.compile(r"\[enforce fail at alloc_cpu\.cpp|DefaultCPUAllocator: (?:can't|not enough)")
_SHARED = re.compile(
    r"workers are out of shared memory|unable to allocate shared memory|unable to mmap .*shm"
)
_KERNEL = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process \d+(?:.*anon-rss:(\d+)kB)?")
_KILLER = re.compile(
    r"oom[-_]kill(?:er)? event|oom-kill:constraint|OOMKilled|OOM Killed|task \d+: Out Of Memory"
    r"|killed by signal: Killed"
)
_SIGKILL = re.compile(
    r"return code = -9\b|exitcode\s*: -9\b|Signal 9 \(SIGKILL\)|Signals\.SIGKILL: 9"
    r"|exit(?:ed with)? code:? (?:-9|137)\b|exit status (?:-9|137)\b"
    r"|^\s*Killed\s*$|(?:^|: +)(?:line \d+: +)?\d+ Killed\b"
)


@dataclass(frozen=True)
class Message:
    """One message; None where it doesn't say."""

    kind: Kind
    certain: bool = True
    backend: str | None = None
    shared_memory: bool = False
    from_driver: bool = False
    """The driver's error, not the allocator's."""
    device: int | None = None
    tried_bytes: int | None = None
    capacity_bytes: int | None = None
    allowed_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    other_process_bytes: int | None = None

    @property
    def known(self) -> int:
        """How many sizes it names."""
        sizes = (self.tried_bytes, self.capacity_bytes, self.free_bytes, self.allocated_bytes)
        return sum(size is not None for size in sizes)


def marked_lines(block: bytes) -> list[int]:
    """Where the lines of `block` begin that are worth a closer look, ascending."""
    starts = set()
    for word in _WORDS:
        found = block.find(word)
        while found >= 0:
            starts.add(block.rfind(b"\n", 0, found) + 1)
            end = block.find(b"\n", found)
            found = block.find(word, end) if end >= 0 else -1
    return sorted(starts)


def find_message(line: str) -> Message | None:
    """The message that begins on `line`; None: none does."""
    if _NCCL.search(line):
        size = _NCCL_BYTES.search(line)
        return Message("nccl", tried_bytes=int(size[1]) if size else None)
    if _LIBRARY.search(line):
        return Message("cublas")
    if found := _DEVICE_BYTES.search(line):
        device, tried, free, total = (int(number) for number in found.groups())
        return Message(
            "device", device=device, tried_bytes=tried, free_bytes=free, capacity_bytes=total
        )
    if found := _DEVICE.search(line):
        # Advice such as "if you get CUDA out of memory" is no message.
        said = "Tried to allocate" in line or _SAID.search(line[: found.start()])
        return Message("device", backend=found[1]) if said else None
    if _PINNED.search(line):
        return Message("pinned")
    if found := _DRIVER.search(line):
        return Message("device", backend=found[1] or "HIP", from_driver=True)
    return _host_message(line)


def with_call(message: Message, lines: Iterable[str]) -> Message:
    """`message` with what the traceback's `lines` say of it.

    The driver has one error for memory of the device and pinned memory of the host.
    """
    if message.from_driver and any(_PINNED_CALL.search(line) for line in lines):
        return replace(message, kind="pinned")
    return message


def _host_message(line: str) -> Message | None:
    if found := _HOST_BYTES.search(line):
        return Message("host", tried_bytes=int(found[1]))
    if _SHARED.search(line):
        return Message("host", shared_memory=True)
    if found := _KERNEL.search(line):
        return Message("host", allocated_bytes=int(found[1]) * KIB if found[1] else None)
    if _HOST.search(line) or _KILLER.search(line):
        return Message("host")
    return Message("host", certain=False) if _SIGKILL.search(line) else None


def is_whole(text: str) -> bool:
    """Whether `text`, a device message without white space, has reached its last number."""
    return "unallocated" in text or "reservedintotal" in text


def read_sizes(message: Message, text: str) -> Message:
    """`message` with the sizes that `text`, its lines without white space, names."""
    gpu = re.search(r"\b(?:GPU|NPU|XPU|HIP)(\d+)(?:;|has)", text)
    allocated = _size(text, _SIZE + r"isallocatedbyPyTorch")
    unallocated = _size(text, _SIZE + r"isreservedbyPyTorchbutunallocated")
    if allocated is None:
        allocated = _size(text, _SIZE + "alreadyallocated")
    reserved = _size(text, _SIZE + "reservedintotal")
    if allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    capacity = _size(text, r"totalcapaci?tyof" + _SIZE)
    free = _size(text, r"ofwhich" + _SIZE + "isfree")
    return _with_processes(
        replace(
            message,
            device=int(gpu[1]) if gpu else message.device,
            tried_bytes=_size(text, "Triedtoallocate" + _SIZE),
            capacity_bytes=_size(text, _SIZE + "totalcapacity") if capacity is None else capacity,
            allowed_bytes=_size(text, _SIZE + "allowed;"),
            free_bytes=_size(text, _SIZE + "free;") if free is None else free,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
        ),
        text,
    )


def _with_processes(message: Message, text: str) -> Message:
    """Add what this process and the others hold.

    Inside a container PyTorch doesn't know its own process among those it lists: then it is the
    smallest of those that hold at least what the allocator has reserved.
    """
    own = _size(text, r"thisprocesshas" + _SIZE + "memoryinuse")
    listed = [
        _bytes(size, unit)
        for size, unit in re.findall(r"Process\d+has" + _SIZE + "memoryinuse", text)
    ]
    if own is None and message.reserved_bytes is not None:
        candidates = [size for size in listed if size >= message.reserved_bytes]
        if candidates:
            own = min(candidates)
            listed.remove(own)
    if own is not None and own < (message.reserved_bytes or 1):
        own = None  # A container hid the process; NVML gave 0.
    others: int | None = sum(listed) or None
    if others is None and own is not None:
        in_use = (message.capacity_bytes or 0) - (message.free_bytes or 0)
        others = max(in_use - own, 0)
    return replace(message, other_process_bytes=others)


def _size(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return _bytes(found[1], found[2]) if found else None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])
