"""The monitor of a run on real clouds: a plain process of this machine, a client of the swarm's DHT."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cloud.provider import LaunchRequest, Observed
from cloud.vm_report import read_status

_FILE = "monitor.pid.json"
_CODE = """
import importlib, os, sys
module, _, name = sys.argv[1].partition(":")
result = getattr(importlib.import_module(module), name)(sys.argv[2])
sys.exit(result if isinstance(result, int) else 0)
"""


def start(run_folder: Path, request: LaunchRequest, now_s: float) -> None:
    """Start it, detached, in `<run>/monitor`; nothing when one of this name was started before."""
    folder = run_folder / "monitor"
    rows = _rows(folder)
    if request.vm in rows:
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "status.json").unlink(missing_ok=True)
    for name, data in {**request.files, "config.json": json.dumps(dict(request.config)).encode()}.items():
        path = folder / name
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # By way of a shell that ends at once: Ray ends the children of a worker that ends, and the monitor stays.
    started = subprocess.run(
        ["/bin/sh", "-c", 'setsid "$@" >> console.log 2>&1 < /dev/null & echo $!', "sh",
         sys.executable, "-c", _CODE, request.program, str(folder / "config.json")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GOLOG_LOG_LEVEL": "error"},
        check=True,
    )  # fmt: skip
    pid = int(started.stdout)
    row = {"pid": pid, "began": _began(pid), "at_s": now_s, "ending": False}
    _write(folder, {**rows, request.vm: row})


def observe(run_folder: Path, now_s: float) -> list[Observed]:
    """All monitors of the run, dead ones too."""
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
    """SIGTERM, after `patience_s` SIGKILL, to one monitor or all; names of those that still live."""
    folder = run_folder / "monitor"
    rows = _rows(folder)
    chosen = {name: row for name, row in rows.items() if vm in (None, name) and _alive(row)}
    if not chosen:
        return []
    for row in chosen.values():
        row["ending"] = True
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
    return [name for name, row in chosen.items() if _alive(row)]


def _alive(row: dict[str, Any]) -> bool:
    return bool(row["began"]) and _began(row["pid"]) == row["began"]


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; "" when it is not there or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] in ("Z", "X") else stat[19]


def _rows(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        return json.loads((folder / _FILE).read_text())
    except (OSError, ValueError):
        return {}


def _write(folder: Path, rows: dict[str, dict[str, Any]]) -> None:
    fresh = folder / f"{_FILE}.{os.getpid()}.new"
    fresh.write_text(json.dumps(rows))
    os.replace(fresh, folder / _FILE)
