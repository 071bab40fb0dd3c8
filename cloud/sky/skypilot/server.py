"""SkyPilot's API server: found when it runs, started when needed, mended when dead, left as it was found.

One server serves all of a user's clusters (ours and those of others), so it is ended only when we started it,
no run of ours needs it, and only by the session of processes that it began.
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
_HANGS_S = 90.0  # on a busy machine an answer takes its time
_MODULE = "sky.server.server"
_TRACKER = "resource_tracker"
_TITLES = ("SkyPilot:", "multiprocessing", _MODULE)


def _url() -> str:
    """Where the server is, by SkyPilot's own configuration."""
    from sky.server import common  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]  # not everybody has it

    return str(common.get_server_url())


def healthy(timeout_s: float = 5.0) -> bool:
    """Whether it answers."""
    try:
        with urllib.request.urlopen(f"{_url()}/api/health", timeout=timeout_s) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def ensure(home: Path) -> None:
    """A server that answers, started or mended when needed. Raises TransientError, InvalidRequestError."""
    if healthy():
        if not (home / "sky-server.json").exists():
            with _lock(home):
                if not (home / "sky-server.json").exists():
                    _note(home, _started(home))
                    (home / "sky-server.starting").unlink(missing_ok=True)
        return
    if not _is_local():
        raise TransientError(f"SkyPilot's API server at {_url()} does not answer; `sky api info` tells more")
    with _lock(home):
        if healthy(10.0):  # another process has started it meanwhile, or it was only slow
            return
        if not _end_orphans(home):
            return
        temporary = tempfile.mkdtemp(prefix="orch-sky-")
        # Whoever finds the server, should this process end before it is up, knows by this that it is ours.
        (home / "sky-server.starting").write_text(temporary)
        try:
            _start(temporary)
            _note(home, temporary)
        except ProviderError:
            _end_unfinished(temporary)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            (home / "sky-server.starting").unlink(missing_ok=True)


def claim(home: Path, run_id: str) -> None:
    """Say that a run needs the server."""
    folder = home / "sky-claims"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / run_id).touch()


def leave(home: Path, run_id: str) -> None:
    """The run needs it no more: end it when it is ours and no other run of this home, nor anybody's call, does."""
    with _lock(home):
        (home / "sky-claims" / run_id).unlink(missing_ok=True)
        if any((home / "sky-claims").glob("*")):
            return
        said = _said(home)
        if not said.get("ours") or not _is_local() or _busy() or _has_clusters():
            return
        if _began(int(said["pid"])) == said["began"]:
            _end_session(int(said["pid"]))
        _forget(home, said)


def _has_clusters() -> bool:
    """Somebody has clusters: their autostop and `sky status` want a server."""
    from cloud.sky.skypilot.sdk import list_clusters

    try:
        return bool(list_clusters())
    except Exception:  # noqa: BLE001 - it does not answer: nothing to be kept alive
        return False


def _busy() -> bool:
    from cloud.sky.skypilot.sdk import skypilot

    try:
        asked = skypilot().api_status()
    except Exception:  # noqa: BLE001 - as above
        return False
    # Its own daemons are requests that never end.
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
    # In a process of its own: the server inherits the environment, and a Ray worker's is not its business.
    # Its temporary files (a wheel for each version, what killed executors leave) are in a folder that goes with it.
    # Above all the mark of Ray's processes (`ORCH_RAY_TEMP`): it would be ended with Ray, in mid-request.
    strange = ("RAY_", "ORCH_RAY_", "OMP_", "MKL_", "ORCH_SECRET_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(strange)}
    environment["TMPDIR"] = temporary
    environment.setdefault("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")  # what is run here is nobody's business
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
        said = done.stderr.decode(errors="replace").strip().splitlines()
        kind = InvalidRequestError if "No module named" in str(said[-1:]) else TransientError
        raise kind(
            f"SkyPilot's API server does not start ({said[-1] if said else 'no reason given'}); "
            "see ~/.sky/api_server/server.log"
        )


def _started(home: Path) -> str:
    """The folder of the server that we were about to start; "" when we were not."""
    try:
        return (home / "sky-server.starting").read_text()
    except OSError:
        return ""


def _note(home: Path, temporary: str) -> None:
    """Remember which session of processes the server that answers now is, and where its temporary files are, if
    it is ours."""
    for pid in _pids():
        if _MODULE in _command(pid) and os.getsid(pid) == pid:
            said = {"pid": pid, "began": _began(pid), "ours": bool(temporary), "temporary": temporary}
            fresh = home / "sky-server.new"
            fresh.write_text(json.dumps(said))
            os.replace(fresh, home / "sky-server.json")
            return


def _said(home: Path) -> dict[str, Any]:
    try:
        return json.loads((home / "sky-server.json").read_text())
    except (OSError, ValueError):
        return {}


def _end_orphans(home: Path) -> bool:
    """What a dead server left behind holds its ports: its executors, and their children. False: it is not dead.

    They are told by their session: it began with a server's process, and that process is dead. The number of a
    session is not given out again while one of its members lives.
    """
    said = _said(home)
    dead: set[int] = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            session = os.getsid(pid)
            if _began(session) or not _command(pid).startswith("SkyPilot:"):
                continue  # its session's first process lives, or it is no SkyPilot process
            dead.add(session)
    leader = int(said.get("pid") or 0)
    if leader and said.get("ours") and _began(leader) == said["began"]:
        if healthy(_HANGS_S):
            return False
        dead.add(leader)  # our own, and it hangs
    for session in dead:
        _end_session(session, patience_s=0.0)
    _forget(home, said)
    return True


def _end_unfinished(temporary: str) -> None:
    """A server that did not come up in time may do so later: nobody would know that it is ours."""
    ours = f"TMPDIR={temporary}".encode()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if _MODULE in _command(pid) and ours in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                _end_session(os.getsid(pid), patience_s=0.0)


def _forget(home: Path, said: dict[str, Any]) -> None:
    """Its server has ended: its temporary files go, then what we knew of it."""
    if said.get("ours") and said.get("temporary"):
        shutil.rmtree(said["temporary"], ignore_errors=True)
    (home / "sky-server.json").unlink(missing_ok=True)


def _end_session(session: int, patience_s: float = 5.0) -> None:
    """End its processes. Python's resource tracker ends by itself after all others, and removes their semaphores
    (/dev/shm) first: it is waited for, and killed only if it stays."""
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
    """A session's processes of SkyPilot's, or else its resource trackers."""
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
    """This user's live processes that could hold a port of ours: none of a container's, which has its own."""
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
    """When a process began, in the kernel's ticks; "" when it is not there or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] in ("Z", "X") else stat[19]
