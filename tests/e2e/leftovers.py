"""What a run may have left on this machine: processes, mounts, network namespaces, temporary files."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "look", "wait_until_clean"]

_PREFIXES = ("orch", "hivemind", "ray", "tmp", "torch", "pymp")


@dataclass(frozen=True)
class Machine:
    """One look at the machine."""

    processes: frozenset[str]  # "pid command" of processes with our ORCH_HOME in their environment
    mounts: frozenset[str]
    files: frozenset[str]  # entries of the temporary folders that look like ours or a library's

    def new_since(self, before: Machine) -> list[str]:
        """What is here now and was not before."""
        return sorted(
            [f"process {p}" for p in self.processes - before.processes]
            + [f"mount {m}" for m in self.mounts - before.mounts]
            + [f"file {f}" for f in self.files - before.files]
        )


def look(home: Path) -> Machine:
    """Look for processes started under this ORCH_HOME (zombies do not count), mounts and temporary entries."""
    marker = f"ORCH_HOME={home}".encode()
    processes = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) != os.getpid() and marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                command = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if command:
                    processes.add(f"{pid} {command[:160]}")
        except OSError:
            continue
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    files = set()
    for folder in {tempfile.gettempdir(), "/tmp", "/dev/shm"}:
        with os.scandir(folder) as entries:
            files |= {e.path for e in entries if e.name.startswith(_PREFIXES) or e.name.endswith(".sock")}
    return Machine(frozenset(processes), frozenset(mounts), frozenset(files))


def wait_until_clean(home: Path, before: Machine, limit_s: float = 20) -> list[str]:
    """Leftovers once they stop going away, at most `limit_s` later. Empty is clean."""
    end = time.monotonic() + limit_s
    while (left := look(home).new_since(before)) and time.monotonic() < end:
        time.sleep(0.25)
    return left
