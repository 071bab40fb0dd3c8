"""Our own Ray session: started when a run needs it, stopped after the last one. The user's Ray is never stopped.

`<home>/ray.json` has its address; `<home>/ray-claims/` has a file for each process that needs it. A separate
process (`orchestrator.ray.host`) starts Ray, checks the claims, and stops Ray and itself when there are none.

Every call requires the token in `<home>/ray-token` (0600), which is new for each session: Ray listens on loopback,
which every user of the machine can reach, and whoever can call it runs code as this user.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloud.durable_file import write_durably
from orchestrator.errors import RaySessionError
from orchestrator.home import make_home
from orchestrator.ray.processes import end_processes, identity, is_alive, marked

_START_S = 90.0

_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_users_own = {name: os.environ.get(name) for name in _TOKEN_VARIABLES}  # for the user's Ray
# Ray replaces 127.0.0.1 by this machine's address unless clusters are disabled.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class RaySession:
    """The content of ray.json."""

    address: str  # "" while it starts
    pid: int  # of the host process, a session leader
    began: str
    temp: str

    @property
    def alive(self) -> bool:
        """Whether the host process is running."""
        return is_alive(self.pid, self.began)

    def save(self, home: Path) -> None:
        """Write ray.json atomically."""
        path = home / "ray.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        os.replace(fresh, path)


def read_session(home: Path) -> RaySession | None:
    """Read ray.json; None if there is none."""
    try:
        return RaySession(**json.loads((home / "ray.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def session_lock(home: Path, *, wait: bool = True) -> Generator[bool, None, None]:
    """Lock for starting and stopping Ray. Without `wait`, yields False if another process holds it."""
    make_home(home)
    with (home / "ray.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def claim(home: Path) -> None:
    """Record that this process needs Ray until it ends."""
    folder = home / "ray-claims"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).write_text(identity(os.getpid()))


def live_claims(home: Path) -> list[int]:
    """Pids of the processes that need Ray; claims of dead processes are removed."""
    alive: list[int] = []
    for file in (home / "ray-claims").glob("[0-9]*"):
        try:
            began = file.read_text()
        except FileNotFoundError:
            continue
        if is_alive(int(file.name), began) or not began:  # "": being written
            alive.append(int(file.name))
        else:
            file.unlink(missing_ok=True)
    return alive


def ensure_ray(home: Path) -> str:
    """Return the address of a running Ray: `RAY_ADDRESS`, else ours, which is started if needed.

    Raises RaySessionError if it does not start within 90 s.
    """
    given = os.environ.get("RAY_ADDRESS", "")
    if given:
        return given
    with session_lock(home):
        claim(home)
        session = read_session(home)
        if session is not None and session.alive and session.address:
            return session.address
        if session is not None:
            _clean_up(home, session)
        return _start(home)


def stop_ray(home: Path) -> list[int]:
    """Stop our Ray, even if it is in use. Returns the pids that could not be ended."""
    with session_lock(home):
        session = read_session(home)
        return [] if session is None else _clean_up(home, session)


def connect(address: str, home: Path) -> None:
    """Connect this process as a driver to the Ray at `address`, ours or the user's. Raises RaySessionError."""
    session = read_session(home)
    ours = session is not None and session.address == address
    _authenticate(_token_of(home) if ours else _users_own)
    import ray
    from ray._private import ray_constants

    if ours:
        # The equivalent of LOOPBACK_ONLY after the import; otherwise Ray looks for our node at this machine's address.
        ray_constants.ENABLE_RAY_CLUSTER = False

    disconnect()
    try:
        ray.init(address=address, namespace="orch", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RaySessionError(f"Ray at {address} does not respond: {str(error).splitlines()[0]}") from error


def _token_of(home: Path) -> Mapping[str, str | None]:
    """Token variables for a client of our Ray. A Ray started by an older orch has no token."""
    path = home / "ray-token"
    if not path.is_file():
        return dict.fromkeys(_TOKEN_VARIABLES)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(path)}


def _authenticate(wanted: Mapping[str, str | None]) -> None:
    """Set these token variables, and make Ray re-read them if it is already imported."""
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    raylet: Any = importlib.import_module("ray._raylet")  # compiled, without type information
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def disconnect() -> None:
    """Disconnect from Ray, so that a dying Ray does not take this process with it."""
    import ray

    if ray.is_initialized():
        ray.shutdown()


def _start(home: Path) -> str:
    write_durably(home / "ray-token", secrets.token_hex(32).encode())
    own = {k: v for k, v in {**os.environ, **_token_of(home)}.items() if v is not None}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with (home / "ray.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.ray.host", str(home)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**own, "PYTHONPATH": path},
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        session = read_session(home)
        if session is not None and session.pid == process.pid and session.address:
            process.returncode = 0  # it is detached from here on and must not be waited for
            return session.address
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    session = read_session(home)
    if session is not None:
        _clean_up(home, session)
    raise RaySessionError(f"Ray did not start; see {home / 'ray.log'} for the cause, then try again")


def _clean_up(home: Path, session: RaySession) -> list[int]:
    """End the remaining processes of a session and remove its files."""
    left = end_processes(lambda: marked(session.temp, session.pid if session.began else None), 5.0)
    if not left:
        shutil.rmtree(session.temp, ignore_errors=True)
        (home / "ray.json").unlink(missing_ok=True)
    return left
