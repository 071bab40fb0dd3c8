"""SkyPilot's API server: used if it runs, started if needed, restarted if dead, and left as it was found.

One server serves all clusters of a user, including those not created by orch. It is therefore ended only if orch started
it and no run of orch needs it, and only the processes of its own session are ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloud.provider import InvalidRequestError, ProviderError, TransientError

_START_S = 180.0
_HANGS_S = 90.0  # how long a busy machine may take to answer
_MODULE = "sky.server.server"
_TRACKER = "resource_tracker"
_TITLES = ("SkyPilot:", "multiprocessing", _MODULE)


def _url() -> str:
    """URL of the server, from SkyPilot's own configuration."""
    from sky.server import common  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]  # not everybody has it

    return str(common.get_server_url())


def healthy(timeout_s: float = 5.0) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"{_url()}/api/health", timeout=timeout_s) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def ensure(home: Path) -> None:
    """Make sure that a server answers; start or restart it if needed. Raises TransientError, InvalidRequestError."""
    if healthy():
        if not (home / "sky-server.json").exists():
            with _lock(home):
                if not (home / "sky-server.json").exists():
                    _record_server(home, _started(home))
                    (home / "sky-server.starting").unlink(missing_ok=True)
        return
    if not _is_local():
        raise TransientError(f"SkyPilot's API server at {_url()} does not answer; `sky api info` shows more")
    with _lock(home):
        if healthy(10.0):  # another process has started it meanwhile, or it was only slow
            return
        if not _end_orphans(home):
            return
        temporary = tempfile.mkdtemp(prefix="orch-sky-")
        # If this process ends before the server is up, the next one sees from this file that orch started it.
        (home / "sky-server.starting").write_text(temporary)
        try:
            _start(temporary)
            _record_server(home, temporary)
        except ProviderError:
            _end_unfinished(temporary)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            (home / "sky-server.starting").unlink(missing_ok=True)


def claim(home: Path, run_id: str) -> None:
    """Record that a run needs the server."""
    folder = home / "sky-claims"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / run_id).touch()


def leave(home: Path, run_id: str) -> None:
    """Drop the run's claim; end the server if orch started it and no other run or call needs it."""
    with _lock(home):
        (home / "sky-claims" / run_id).unlink(missing_ok=True)
        if any((home / "sky-claims").glob("*")):
            return
        state = _read_state(home)
        if not state.get("ours") or not _is_local() or _busy() or _has_clusters():
            return
        if _began(int(state["pid"])) == state["began"]:
            _end_session(int(state["pid"]))
        _forget(home, state)


def _has_clusters() -> bool:
    """Whether any clusters exist: their autostop and `sky status` need a server."""
    from cloud.sky.skypilot.sdk import list_clusters

    try:
        return bool(list_clusters())
    except Exception:  # noqa: BLE001 - it does not answer, so there is nothing to keep alive
        return False


def _busy() -> bool:
    from cloud.sky.skypilot.sdk import skypilot

    try:
        asked = skypilot().api_status()
    except Exception:  # noqa: BLE001 - as in `_has_clusters`
        return False
    # The server's own daemons are requests that never end.
    return any(not str(each.request_id).endswith("-daemon") for each in asked)


def _is_local() -> bool:
    from sky.server import common  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]  # not everybody has it

    return bool(common.is_api_server_local())


@contextmanager
def _lock(home: Path) -> Generator[None, None, None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "sky-server.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start(temporary: str) -> None:
    # A separate process, since the server inherits the environment, which must not be that of a Ray worker. In particular
    # it must not have the mark of Ray's processes (`ORCH_RAY_TEMP`), or it would be ended with Ray in mid-request. Its
    # temporary files (a wheel for each version, leftovers of killed executors) are in a folder that is removed with it.
    excluded = ("RAY_", "ORCH_RAY_", "OMP_", "MKL_", "ORCH_SECRET_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(excluded)}
    environment["TMPDIR"] = temporary
    environment.setdefault("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")  # for the user's privacy
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import sky; sky.api_start()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=_START_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"SkyPilot's API server did not start within {_START_S:.0f} s") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        kind = InvalidRequestError if "No module named" in str(lines[-1:]) else TransientError
        raise kind(
            f"SkyPilot's API server does not start ({lines[-1] if lines else 'no reason given'}); "
            "see ~/.sky/api_server/server.log"
        )


def _started(home: Path) -> str:
    """The temporary folder of a server that orch was about to start; "" if there is none."""
    try:
        return (home / "sky-server.starting").read_text()
    except OSError:
        return ""


def _record_server(home: Path, temporary: str) -> None:
    """Record the process session of the server that answers now, and its temporary folder if orch started it."""
    for pid in _pids():
        if _MODULE in _command(pid) and os.getsid(pid) == pid:
            state = {"pid": pid, "began": _began(pid), "ours": bool(temporary), "temporary": temporary}
            fresh = home / "sky-server.new"
            fresh.write_text(json.dumps(state))
            os.replace(fresh, home / "sky-server.json")
            return


def _read_state(home: Path) -> dict[str, Any]:
    try:
        return json.loads((home / "sky-server.json").read_text())
    except (OSError, ValueError):
        return {}


def _end_orphans(home: Path) -> bool:
    """End what a dead server left behind and what blocks its ports: its executors and their children.

    Returns False if the server is not dead. Such processes are identified by their session, whose first process, a
    server, has died. The kernel does not reuse the id of a session while one of its members is alive.
    """
    state = _read_state(home)
    dead: set[int] = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            session = os.getsid(pid)
            if _began(session) or not _command(pid).startswith("SkyPilot:"):
                continue  # the session's first process is alive, or this is not a SkyPilot process
            dead.add(session)
    leader = int(state.get("pid") or 0)
    if leader and state.get("ours") and _began(leader) == state["began"]:
        if healthy(_HANGS_S):
            return False
        dead.add(leader)  # started by orch, and it hangs
    for session in dead:
        _end_session(session, patience_s=0.0)
    _forget(home, state)
    return True


def _end_unfinished(temporary: str) -> None:
    """End a server that did not come up in time: it could do so later, unknown to orch."""
    ours = f"TMPDIR={temporary}".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if _MODULE in _command(pid) and ours in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                _end_session(os.getsid(pid), patience_s=0.0)


def _forget(home: Path, state: dict[str, Any]) -> None:
    """Remove the temporary files and the state of a server that has ended."""
    if state.get("ours") and state.get("temporary"):
        shutil.rmtree(state["temporary"], ignore_errors=True)
    (home / "sky-server.json").unlink(missing_ok=True)


def _end_session(session: int, patience_s: float = 5.0) -> None:
    """End the processes of a session.

    Python's resource tracker ends by itself after all others, and removes their semaphores (/dev/shm) first. It is
    therefore waited for, and killed only if it does not end.
    """
    for number, wait_s, trackers in (
        (signal.SIGTERM, patience_s, False), (signal.SIGKILL, 5.0, False), (0, 5.0, True), (signal.SIGKILL, 5.0, True),
    ):  # fmt: skip
        deadline = time.monotonic() + wait_s
        while wait_s and (members := _members(session, trackers)):
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)


def _members(session: int, trackers: bool) -> list[int]:
    """SkyPilot's processes of a session, either without its resource trackers or only these."""
    found: list[int] = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            words = _command(pid)
            if (
                os.getsid(pid) == session
                and any(t in words for t in _TITLES)
                and (_TRACKER in words) == trackers
            ):
                found.append(pid)
    return found


def _pids() -> list[int]:
    """This user's live processes that could hold the server's port; not those of containers with their own network."""
    own = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            ours = folder.stat().st_uid == os.getuid() and pid != os.getpid()
            if ours and _began(pid) and [os.readlink(folder / "ns" / kind) for kind in ("net", "pid")] == own:
                found.append(pid)
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Start time of a process in the kernel's ticks; "" if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] in ("Z", "X") else stat[19]
