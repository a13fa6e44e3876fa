"""Out-of-memory messages in the exact forms of PyTorch and DeepSpeed, for tests that read them."""

from __future__ import annotations

from qdeploy.core.units import GIB, KIB, MIB

CAPACITY = round(79.15 * GIB)
HINT = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def size(count: int) -> str:
    """As c10's format_size prints it."""
    if count <= KIB:
        return f"{count} bytes"
    if count <= MIB:
        return f"{count / KIB:.2f} KiB"
    return f"{count / MIB:.2f} MiB" if count <= GIB else f"{count / GIB:.2f} GiB"


def on_device(count: int) -> int:
    """What the caching allocator asks the device for."""
    if count <= MIB:
        return 2 * MIB
    if count < 10 * MIB:
        return 20 * MIB
    total = 0
    while total < count:
        total += 2 * MIB
    return total


def message(
    tried: int,
    *,
    free: int = GIB,
    allocated: int = 76 * GIB,
    unallocated: int = 0,
    gpu: int = 0,
    processes: str | None = None,
    capacity: int = CAPACITY,
) -> str:
    """PyTorch's message since 2.2."""
    own = capacity - free
    held = processes or f"Including non-PyTorch memory, this process has {size(own)} memory in use."
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size(tried)}. GPU {gpu} "
        f"has a total capacity of {size(capacity)} of which {size(free)} is free. {held} Of the "
        f"allocated memory {size(allocated)} is allocated by PyTorch, and {size(unallocated)} is "
        f"reserved by PyTorch but unallocated.{HINT}"
    )


def traceback(*frames: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [f'  File "/opt/site-packages/x.py", line 7, in {frame.split("|")[0]}']
        lines += [f"    {frame.split('|')[1]}"]
    return "\n".join(lines) + "\n"


FORWARD = traceback("train|outputs = model(**batch)", "forward|x = self.layers(x)")
BACKWARD = traceback("train|self.accelerator.backward(loss)", "backward|loss.backward(**kwargs)")

CPU_ALLOCATOR = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 26951327744 bytes. Error code 12 (Cannot allocate)"
)
USAGE = (
    "[2023-05-24 10:02:10,993] [INFO] [utils.py:829:see_memory_usage] DeepSpeedZeRoOffload "
    "initialize [end]\n"
    "[2023-05-24 10:02:10,994] [INFO] [utils.py:834:see_memory_usage] MA 1.5 GB         Max_MA "
    "2.0 GB         CA 2.73 GB         Max_CA 3 GB \n"
    "[2023-05-24 10:02:10,994] [INFO] [utils.py:839:see_memory_usage] CPU Virtual Memory:  used = "
    "23.44 GB, percent = 24.8%\n"
)


def near(found: int | None, expected: int) -> bool:
    """Equal to the two decimals of the message."""
    assert found is not None
    return abs(found - expected) <= (GIB if expected > GIB else MIB) // 200 + 1
