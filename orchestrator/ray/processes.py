"""Which process is which: a pid is one only together with when it began."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def identity(pid: int) -> str:
    """What tells this process from a later one of the same pid; "" when there is none (zombies are none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        return _identity_without_proc(pid)
    except (OSError, ProcessLookupError):
        return ""
    return "" if stat[0] in ("Z", "X") else stat[19]


def _identity_without_proc(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "another user's"
    return "unknown"


def is_alive(pid: int, began: str) -> bool:
    """Whether the process that had this identity still runs."""
    return bool(began) and identity(pid) == began


def marked(mark: str, session: int | None = None) -> list[int]:
    """Pids of this user's processes whose environment or command line holds `mark`, or of that session.

    Linux only; elsewhere none are found. A process may have overwritten its environment with its title
    (Ray's workers do), hence the session.
    """
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid() or not identity(pid):
            continue
        try:
            ours = session is not None and os.getsid(pid) == session
            if not ours:
                text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
                ours = mark.encode() in text
        except OSError:  # it has gone, or is another user's
            continue
        if ours:
            found.append(pid)
    return found


def end_processes(find: Callable[[], Iterable[int]], patience_s: float) -> list[int]:
    """SIGTERM what `find` finds, after `patience_s` SIGKILL, again until nothing is found; pids that stay."""
    for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + limit_s
        signalled: set[int] = set()
        while pids := list(find()):
            for pid in pids:
                if pid not in signalled:
                    signalled.add(pid)
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        continue
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return []
    return list(find())
