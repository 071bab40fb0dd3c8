"""What a run may have left on this machine: processes (with their namespaces), mounts, temporary files."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# What libraries put there whatever TMPDIR says.
_ELSEWHERE = {"/tmp": ("hivemind", "ray"), "/dev/shm": ("orch", "hivemind", "ray", "plasma", "torch", "pymp")}


@dataclass(frozen=True)
class Machine:
    """One look at the machine."""

    processes: frozenset[str]  # "pid command"
    mounts: frozenset[str]
    files: frozenset[str]  # all of the test's own TMPDIR; elsewhere what looks like a library's

    def new_since(self, before: Machine) -> list[str]:
        """What is here now and was not before."""
        return sorted(
            [f"process {p}" for p in self.processes - before.processes]
            + [f"mount {m}" for m in self.mounts - before.mounts]
            + [f"file {f}" for f in self.files - before.files if not _another_s(Path(f).name)]
        )


def command_of(pid: int) -> str:
    """Its command line; "" for zombies and those that have gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def our_processes(base: Path) -> list[int]:
    """Processes that were started for a home below `base`, however deep, in whatever namespace.

    A network, PID or mount namespace lives as long as a process in it or a mount of it, so none is left
    without being seen here or among the mounts. Ray's workers overwrite their environment with their title:
    they are known by their open files.
    """
    return [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _ours(pid, os.fsencode(base))
    ]


def _ours(pid: int, base: bytes) -> bool:
    if pid == os.getpid() or not command_of(pid):
        return False
    folder = Path(f"/proc/{pid}")
    try:
        if base in (folder / "environ").read_bytes() or base in (folder / "cmdline").read_bytes():
            return True
        links = [folder / "cwd", *(folder / "fd").iterdir()]
    except OSError:  # it has gone, or is another user's
        return False
    return any(base in _target(link) for link in links)


def _target(link: Path) -> bytes:
    try:
        return os.fsencode(os.readlink(link))
    except OSError:  # closed meanwhile
        return b""


def _another_s(name: str) -> bool:
    """Shared memory of torch names its process: while that lives, it is told of as a process, if ours."""
    return name.startswith("torch_") and Path("/proc", name.split("_")[1]).exists()


def look(base: Path) -> Machine:
    """Look for processes of `base`, mounts, and files in `base`/t (the TMPDIR) and where libraries hide some."""
    processes = {f"{pid} {command_of(pid)[:160]}" for pid in our_processes(base)}
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    files = {str(path) for path in (base / "t").iterdir()}
    for folder, prefixes in _ELSEWHERE.items():
        with os.scandir(folder) as entries:
            files |= {e.path for e in entries if e.name.startswith(prefixes)}
    return Machine(frozenset(processes), frozenset(mounts), frozenset(files))


def wait_until_clean(base: Path, before: Machine, limit_s: float = 20) -> list[str]:
    """Leftovers once they stop going away, at most `limit_s` later. Empty is clean."""
    end = time.monotonic() + limit_s
    while (left := look(base).new_since(before)) and time.monotonic() < end:
        time.sleep(0.25)
    return left
