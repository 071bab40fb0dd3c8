"""The process that holds our Ray: `python -m orchestrator.ray.host HOME`, leader of a session."""

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
_OBJECT_STORE_BYTES = 100_000_000  # the controller passes no large object
_CPUS = 2
# `ray start` has no option for it: where the client's packages are installed it starts the server, at 10001.
_WITHOUT_CLIENT_SERVER = """
from ray.scripts import scripts
scripts.get_ray_client_dependency_error = lambda: "orch needs no Ray client"
scripts.main()
"""


class _Terminated(Exception):
    """SIGTERM came."""


def main(arguments: list[str]) -> int:
    """Start Ray, hold it while anybody claims it, end it. Exit code 1 when it died or did not start."""
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
    """Ray makes sockets in there, whose paths may have 107 bytes, some 85 of them its own and ours."""
    wished = os.environ.get("TMPDIR", "/tmp")
    return wished if len(wished) <= 20 and os.access(wished, os.W_OK) else "/tmp"


def _start_head(temp: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Loopback only, free ports, no dashboard, no client server, no usage report."""
    command = [
        *(sys.executable, "-c", _WITHOUT_CLIENT_SERVER, "start", "--head", "--block"),
        *("--node-ip-address=127.0.0.1", "--port=0", "--include-dashboard=false", "--disable-usage-stats"),
        *("--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0"),
        "--include-log-monitor=false",
        *(f"--num-cpus={_CPUS}", f"--object-store-memory={_OBJECT_STORE_BYTES}", f"--temp-dir={_rays(temp)}"),
    ]
    settings = {**LOOPBACK_ONLY, "RAY_USAGE_STATS_ENABLED": "0", "RAY_SCHEDULER_EVENTS": "0"}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**environment, **settings})


def _rays(temp: Path) -> Path:
    """Ray opens its folder to everybody (0777), so it has one within ours (0700)."""
    return temp / "r"


def _address(temp: Path, head: subprocess.Popen[bytes]) -> str:
    """Where it listens, once it says so. Raises RuntimeError when it ends instead."""
    file = _rays(temp) / "ray_current_cluster"
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
            with session_lock(home, wait=False) as ours:  # somebody who starts a run holds it
                if ours and not live_claims(home):
                    (home / "ray.json").unlink(missing_ok=True)
                    return 0
        time.sleep(_PERIOD_S)
    print(f"ray start ended with {head.returncode}", file=sys.stderr)  # noqa: T201 - goes to ray.log
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
