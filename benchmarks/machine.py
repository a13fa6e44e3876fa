"""What a benchmark ran on, printed above its numbers."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import torch


def describe() -> str:
    """Processor, cores, threads and versions in one line."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (
        f"{platform.machine()} ({torch.backends.cpu.get_cpu_capability()}), "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, {packages}"
    )
