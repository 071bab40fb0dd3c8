"""The monitor of a run on real clouds: a plain process on this machine, a client of the swarm's DHT.

It holds a lock named after it while it is alive, and records its own pid before anything else. It can therefore be found
and ended even if the process that started it dies at any point.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud.provider import LaunchRequest, Observed, TransientError
from cloud.vm_report import read_status

_FILE = "monitor.pid.json"
_PID_S = 10.0  # from the start until the pid is recorded
# Started through a shell that exits at once: Ray ends the children of a worker that ends, but not the monitor.
_START = 'setsid sh -c "$@" >> console.log 2>&1 < /dev/null &'
# Records the pid and the process's start time in the kernel's ticks; exec changes neither.
_NOTE_PID = 'echo $$ $(cut -d" " -f22 /proc/$$/stat) > "$0.new" && mv "$0.new" "$0" && exec "$@"'
_CODE = """
import importlib, os, sys
module, _, name = sys.argv[1].partition(":")
result = getattr(importlib.import_module(module), name)(sys.argv[2])
sys.exit(result if isinstance(result, int) else 0)
"""


def start(run_folder: Path, request: LaunchRequest) -> None:
    """Start a monitor, detached, in `<run>/monitor`; do nothing if one with this name was started before.

    Raises TransientError if it does not start within 10 s; OSError.
    """
    folder = run_folder / "monitor"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _lock_file(folder, request.vm).open(
        "a"
    ) as lock:  # inherited by the monitor, which holds it until it ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if request.vm in _rows(folder):
            return
        _spawn(folder, request, lock.fileno())
        if not _await(lambda: request.vm in _rows(folder), _PID_S):
            raise TransientError(
                f"{request.vm} did not start within {_PID_S:.0f} s; see {folder}/console.log"
            )


def _spawn(folder: Path, request: LaunchRequest, lock: int) -> None:
    (folder / "status.json").unlink(missing_ok=True)
    for name, data in {**request.files, "config.json": json.dumps(dict(request.config)).encode()}.items():
        path = folder / name
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # Remove Ray's variables: otherwise the monitor would be ended with Ray.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ORCH_RAY_"))}
    subprocess.run(
        ["/bin/sh", "-c", _START, "sh", _NOTE_PID, str(_pid_file(folder, request.vm)),
         sys.executable, "-c", _CODE, request.program, str(folder / "config.json")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GOLOG_LOG_LEVEL": "error"},
        pass_fds=(lock,),
        check=True,
    )  # fmt: skip


def observe(run_folder: Path, now_s: float) -> list[Observed]:
    """Return all monitors of the run, including dead ones."""
    folder = run_folder / "monitor"
    rows = _rows(folder)
    newest = max(rows, key=lambda vm: rows[vm]["at_s"], default="")
    found: list[Observed] = []
    changed = False
    for vm, row in rows.items():
        alive = _alive(row)
        if not alive and row.get("ended_s") is None:
            row["ended_s"], changed = now_s, True
        status = read_status(folder / "status.json") if vm == newest else {}
        done = row["ending"] or status.get("phase") == "done"
        found.append(
            Observed(
                vm=vm,
                state="running" if alive else "terminated" if done else "failed",
                location="",
                address=None,
                requested_at_s=row["at_s"],
                ready_at_s=row["at_s"],
                ended_at_s=None if alive else row["ended_s"],
                cause=""
                if alive
                else "terminated"
                if done
                else f"the monitor died; see {folder}/monitor.log",
                notice_at_s=None,
                status=status,
                pid=row["pid"] if alive else None,
            )
        )
    if changed:
        _write(folder, rows)
    return found


def end(run_folder: Path, vm: str | None = None, patience_s: float = 5.0) -> list[str]:
    """Send SIGTERM, and SIGKILL after `patience_s`, to one monitor or all; returns the names of those still alive."""
    folder = run_folder / "monitor"
    _await(lambda: not _without_pid(folder, _rows(folder)), _PID_S)
    rows = _rows(folder)
    chosen = {name: row for name, row in rows.items() if vm in (None, name) and _alive(row)}
    unknown = [name for name in _without_pid(folder, rows) if vm in (None, name)]
    if not chosen:
        return unknown
    for row in chosen.values():
        row["ending"] = True
    with contextlib.suppress(OSError):  # end them even if the disk is full
        _write(folder, rows)
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        for row in chosen.values():
            if _alive(row):
                try:
                    os.killpg(row["pid"], number)
                except ProcessLookupError:
                    continue
        deadline = time.monotonic() + wait_s
        while any(_alive(row) for row in chosen.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
    return unknown + [name for name, row in chosen.items() if _alive(row)]


def _alive(row: dict[str, Any]) -> bool:
    return bool(row["began"]) and _began(row["pid"]) == row["began"]


def _began(pid: int) -> str:
    """Start time of a process in the kernel's ticks; "" if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] in ("Z", "X") else stat[19]


def _rows(folder: Path) -> dict[str, dict[str, Any]]:
    """State of each monitor that has recorded its pid: pid, began, at_s, ending, ended_s."""
    try:
        rows = dict(json.loads((folder / _FILE).read_text()))
    except (OSError, ValueError, TypeError):
        rows = {}
    for path in folder.glob("monitor*.pid"):
        if path.stem not in rows:
            pid, began = path.read_text().split()
            at_s = path.stat().st_mtime
            rows[path.stem] = {"pid": int(pid), "began": began, "at_s": at_s, "ending": False}
    return rows


def _without_pid(folder: Path, rows: Mapping[str, Any]) -> list[str]:
    """Names of monitors that have been started but have not recorded their pid yet."""
    names = [path.name[1 : -len(".lock")] for path in folder.glob(".monitor*.lock")]
    return [name for name in names if name not in rows and _held(_lock_file(folder, name))]


def _held(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_file(folder: Path, vm: str) -> Path:
    return folder / f".{vm}.lock"


def _pid_file(folder: Path, vm: str) -> Path:
    return folder / f"{vm}.pid"


def _await(holds: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not (done := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return done


def _write(folder: Path, rows: dict[str, dict[str, Any]]) -> None:
    fresh = folder / f"{_FILE}.{os.getpid()}.new"
    fresh.write_text(json.dumps(rows))
    os.replace(fresh, folder / _FILE)
