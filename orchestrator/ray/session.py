"""Our own Ray: started when a run needs it, stopped when the last one has ended, never the user's.

`<home>/ray.json` says where it is; `<home>/ray-claims/` holds a file for each process that needs it. A
process of its own (`ray_host`) starts Ray, looks at the claims, and ends Ray and itself without them.

Every call of it needs the token in `<home>/ray-token` (0600), new with each Ray: it listens on loopback, where every user of the
machine reaches it, and who can call it runs code as us.
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

# Ray turns the wish for 127.0.0.1 into this machine's address unless it is told to form no clusters.
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_users_own = {name: os.environ.get(name) for name in _TOKEN_VARIABLES}  # for the user's Ray
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class RaySession:
    """ray.json."""

    address: str  # "" while it starts
    pid: int  # of ray_host, which leads a session of its own
    began: str
    temp: str

    @property
    def alive(self) -> bool:
        """Whether its host process runs."""
        return is_alive(self.pid, self.began)

    def save(self, home: Path) -> None:
        """Write ray.json atomically."""
        path = home / "ray.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        os.replace(fresh, path)


def read_session(home: Path) -> RaySession | None:
    """What ray.json says; None without one."""
    try:
        return RaySession(**json.loads((home / "ray.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def session_lock(home: Path, *, wait: bool = True) -> Generator[bool, None, None]:
    """One process at a time starts or ends Ray; yields False when not `wait` and somebody else is at it."""
    make_home(home)
    with (home / "ray.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def claim(home: Path) -> None:
    """Say that this process needs Ray until it ends."""
    folder = home / "ray-claims"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(os.getpid())).write_text(identity(os.getpid()))


def live_claims(home: Path) -> list[int]:
    """Processes that need Ray; claims of dead ones are removed."""
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
    """The address of a Ray that lives: `RAY_ADDRESS`, else ours, started when needed.

    Raises RaySessionError when it does not start within 90 s.
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
    """End our Ray now, whoever uses it; returns pids that could not be ended. Nothing when there is none."""
    with session_lock(home):
        session = read_session(home)
        return [] if session is None else _clean_up(home, session)


def connect(address: str, home: Path) -> None:
    """Make this process a driver of the Ray at `address`, ours or the user's. Raises RaySessionError."""
    session = read_session(home)
    ours = session is not None and session.address == address
    _authenticate(_token_of(home) if ours else _users_own)
    import ray
    from ray._private import ray_constants

    if ours:
        # LOOPBACK_ONLY once Ray is imported; without it, it looks for our node at this machine's address.
        ray_constants.ENABLE_RAY_CLUSTER = False

    disconnect()
    try:
        ray.init(address=address, namespace="orch", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RaySessionError(f"Ray at {address} does not answer: {str(error).splitlines()[0]}") from error


def _token_of(home: Path) -> Mapping[str, str | None]:
    """What a process of our Ray has in its environment. A Ray that an older orch started has no token."""
    path = home / "ray-token"
    if not path.is_file():
        return dict.fromkeys(_TOKEN_VARIABLES)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(path)}


def _authenticate(wanted: Mapping[str, str | None]) -> None:
    """Use these variables from now on; Ray reads them when it is imported, and when it is told to."""
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    raylet: Any = importlib.import_module("ray._raylet")  # compiled: nobody knows its types
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def disconnect() -> None:
    """Be no driver any more: a Ray that dies must not take this process with it."""
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
            process.returncode = 0  # it is on its own from here: not ours to wait for
            return session.address
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    session = read_session(home)
    if session is not None:
        _clean_up(home, session)
    raise RaySessionError(f"Ray did not start; see {home / 'ray.log'}, then try again")


def _clean_up(home: Path, session: RaySession) -> list[int]:
    """End what is left of a session and its files."""
    left = end_processes(lambda: marked(session.temp, session.pid if session.began else None), 5.0)
    if not left:
        shutil.rmtree(session.temp, ignore_errors=True)
        (home / "ray.json").unlink(missing_ok=True)
    return left
