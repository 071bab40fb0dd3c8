"""CPU time of this process and its worker processes, and memory that is available."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path


def cpu_s() -> float:
    """CPU seconds of this process and of its living `multiprocessing` children so far."""
    return time.process_time() + sum(_of(child.pid) for child in multiprocessing.active_children())


def available_bytes() -> int:
    """Memory that can be taken without swapping: MemAvailable."""
    return _memory("MemAvailable")


def total_bytes() -> int:
    """The machine's memory: MemTotal."""
    return _memory("MemTotal")


def _memory(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {name}")


def _of(pid: int | None) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
