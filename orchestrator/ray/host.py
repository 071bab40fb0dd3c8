"""The process that hosts our Ray: `python -m orchestrator.ray.host HOME`, a session leader."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from orchestrator.ray.processes import end_processes, identity, marked
from orchestrator.ray.session import LOOPBACK_ONLY, RaySession, live_claims, session_lock

_IDLE_S = 4.0
_PERIOD_S = 0.5
_OBJECT_STORE_BYTES = 100_000_000  # the controller passes no large objects
_CPUS = 2
# `ray start` has no option to disable the client server: it starts one on port 10001 if the client's packages are installed.
_WITHOUT_CLIENT_SERVER = """
from ray.scripts import scripts
scripts.get_ray_client_dependency_error = lambda: "orch needs no Ray client"
scripts.main()
"""


class _Terminated(Exception):
    """SIGTERM was received."""


def main(arguments: list[str]) -> int:
    """Start Ray, keep it while any process claims it, then stop it. Returns 1 if it died or did not start."""
    home = Path(arguments[0])
    signal.signal(signal.SIGTERM, _terminate)
    temp = Path(tempfile.mkdtemp(prefix="orch-ray-", dir=_short_temp()))
    session = RaySession("", os.getpid(), identity(os.getpid()), str(temp))
    session.save(home)
    head = _start_head(temp, {**os.environ, "ORCH_RAY_TEMP": str(temp)})
    code = 1
    try:
        address = _address(temp, head)
        RaySession(address, session.pid, session.began, session.temp).save(home)
        code = _hold(home, head)
    except _Terminated:
        code = 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with session_lock(home, wait=False) as ours:
            end_processes(lambda: [p for p in marked(str(temp), os.getpid()) if p != os.getpid()], 3.0)
            head.wait(5)
            shutil.rmtree(temp, ignore_errors=True)
            if ours:
                (home / "ray.json").unlink(missing_ok=True)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _short_temp() -> str:
    """A short temporary folder: socket paths are limited to 107 bytes, and Ray and orch use about 85 of them."""
    folder = os.environ.get("TMPDIR", "/tmp")
    return folder if len(folder) <= 20 and os.access(folder, os.W_OK) else "/tmp"


def _start_head(temp: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the head node: loopback only, free ports, no dashboard, no client server, no usage report."""
    command = [
        *(sys.executable, "-c", _WITHOUT_CLIENT_SERVER, "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", "--port=0", "--include-dashboard=false", "--disable-usage-stats"),
        *("--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0"),
        "--include-log-monitor=false",
        *(
            f"--num-cpus={_CPUS}",
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
            f"--temp-dir={_ray_folder(temp)}",
        ),
    ]
    settings = {**LOOPBACK_ONLY, "RAY_USAGE_STATS_ENABLED": "0", "RAY_SCHEDULER_EVENTS": "0"}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**environment, **settings})


def _ray_folder(temp: Path) -> Path:
    """Ray's folder. Ray makes it world-writable (0777), so it lies inside a private one (0700)."""
    return temp / "r"


def _address(temp: Path, head: subprocess.Popen[bytes]) -> str:
    """Wait for Ray's address. Raises RuntimeError if Ray exits instead."""
    file = _ray_folder(temp) / "ray_current_cluster"
    while not (file.exists() and (text := file.read_text().strip())):
        if head.poll() is not None:
            raise RuntimeError(f"ray start ended with {head.returncode}")
        time.sleep(0.05)
    return text


def _hold(home: Path, head: subprocess.Popen[bytes]) -> int:
    claimed_s = time.monotonic()
    while head.poll() is None:
        if live_claims(home):
            claimed_s = time.monotonic()
        elif time.monotonic() - claimed_s > _IDLE_S:
            with session_lock(home, wait=False) as ours:  # held by a process that is starting a run
                if ours and not live_claims(home):
                    (home / "ray.json").unlink(missing_ok=True)
                    return 0
        time.sleep(_PERIOD_S)
    print(f"ray start ended with {head.returncode}", file=sys.stderr)  # noqa: T201 - goes to ray.log
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
