"""Identify processes by pid and start time, since pids are reused, and name those of a run for `ps`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

_Class = TypeVar("_Class", bound=type[Any])


def named_for(run_id: str, actor: _Class) -> _Class:
    """The class of an actor under a name with the run's id, which Ray makes the title of its process."""
    name = f"{actor.__name__.lstrip('_')} {run_id}"
    return cast("_Class", type(name, (actor,), {"__module__": actor.__module__, "__doc__": actor.__doc__}))


def identity(pid: int) -> str:
    """Start time of a process, which distinguishes it from later ones with its pid; "" for none or a zombie."""
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
    """Whether the process with this pid and identity is still running."""
    return bool(began) and identity(pid) == began


def marked(mark: str, session: int | None = None) -> list[int]:
    """Pids of this user's processes in `session`, or with `mark` in their environment or command line.

    Linux only; elsewhere none are found. Processes may overwrite their environment with their title, as Ray's
    workers do, hence the session.
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
        except OSError:  # it has ended, or belongs to another user
            continue
        if ours:
            found.append(pid)
    return found


def end_processes(find: Callable[[], Iterable[int]], patience_s: float) -> list[int]:
    """Send SIGTERM, and SIGKILL after `patience_s`, until `find` returns nothing. Returns the pids that are left."""
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
