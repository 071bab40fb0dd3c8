"""The embedded object store: OpenStack Swift with its S3 interface, as four child processes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cloud.storage import _swift_child
from cloud.storage.errors import EmbeddedStoreError, PortTakenError
from cloud.storage.swift_config import (
    INNER_SERVERS,
    StoreCredentials,
    load_or_make_credentials,
    write_swift,
)
from cloud.storage.swift_environment import swift_environment

_SERVERS = (*INNER_SERVERS, "proxy")
_CHILD = Path(_swift_child.__file__).absolute()
_PR_SET_PDEATHSIG = 1
_RESTARTS, _RESTARTS_S = 5, 60.0  # give up if one server needs more restarts within this time


class SwiftServer:
    """One store in one folder: data, credentials (0600), configuration and logs, which are kept between starts.

    `port` 0 selects a free port. `enter` is called in each child before it executes Swift, for example to enter a network
    namespace; `bind_ip` and the inner servers' 127.0.0.1 are addresses of that namespace. The processes die with this
    one, however it ends. Use as a context manager or call stop(). `environment` is Swift's virtual environment (default:
    swift_environment(), which creates it).
    """

    def __init__(
        self,
        folder: Path,
        bind_ip: str = "127.0.0.1",
        port: int = 0,
        *,
        enter: Callable[[], None] | None = None,
        environment: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder.absolute()
        self.bind_ip = bind_ip
        self.port = port
        self._enter = enter
        self._environment = environment
        self._clock = clock
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._inner: dict[str, int] = {}
        self._restarts: dict[str, deque[float]] = {name: deque(maxlen=_RESTARTS) for name in _SERVERS}
        # PDEATHSIG is sent when the *thread* that forked a child ends, so one long-lived thread forks all of them.
        self._spawner: ThreadPoolExecutor | None = None
        self._lock_fd: int | None = None
        self._credentials: StoreCredentials | None = None

    @property
    def endpoint(self) -> str:
        """URL for boto3; the port is valid after start()."""
        host = f"[{self.bind_ip}]" if ":" in self.bind_ip else self.bind_ip
        return f"http://{host}:{self.port}"

    @property
    def credentials(self) -> StoreCredentials:
        """The store's credentials. Raises EmbeddedStoreError before start()."""
        if self._credentials is None:
            raise EmbeddedStoreError(f"{self.folder}: the store was not started; start it first")
        return self._credentials

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids by server: account, container, object, proxy."""
        return {name: process.pid for name, process in self._processes.items()}

    def start(self) -> None:
        """Start the four processes; wait_ready() waits until they serve.

        Raises PortTakenError, and EmbeddedStoreError if the folder is in use, its file system lacks extended attributes,
        or the environment cannot be created.
        """
        if self._processes:
            return
        if self._environment is None:
            self._environment = swift_environment()
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="swift-spawner")
        try:
            self._prepare()
            for name in _SERVERS:
                self._spawn(name)
        except (OSError, subprocess.SubprocessError) as error:
            self.stop()
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise EmbeddedStoreError(
                f"{self.folder}: the embedded store cannot start ({why}); "
                "make sure that the folder is writable and has space, then start it again"
            ) from error
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until all four answer. Raises EmbeddedStoreError if one ends or the time runs out."""
        deadline = self._clock() + timeout_s
        while not self.health(timeout_s=1.0):
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or not self._processes:
                raise EmbeddedStoreError(self._ended(dead[0] if dead else "proxy"))
            if self._clock() > deadline:
                raise EmbeddedStoreError(
                    f"the embedded store at {self.endpoint} does not answer after {timeout_s:.0f} s; "
                    f"check {self.folder}/*.log, then start it again"
                )

    def health(self, timeout_s: float = 0.0) -> bool:
        """Whether all four answer now, or within `timeout_s`."""
        ports = [("127.0.0.1", port) for port in self._inner.values()]
        urls = [f"http://{ip}:{port}/healthcheck" for ip, port in ports] + [f"{self.endpoint}/healthcheck"]
        try:
            return self._run_child("health", str(timeout_s), *urls, timeout_s=timeout_s + 30).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def supervise(self) -> tuple[str, ...]:
        """Restart servers that have died, on their old ports, and return their names. Call this periodically.

        Raises EmbeddedStoreError if one keeps dying.
        """
        started: list[str] = []
        for name in [name for name, process in self._processes.items() if process.poll() is not None]:
            times, now_s = self._restarts[name], self._clock()
            if len(times) == _RESTARTS and now_s - times[0] < _RESTARTS_S:
                raise EmbeddedStoreError(f"{self._ended(name)} (it died {_RESTARTS} times in a minute)")
            times.append(now_s)
            self._spawn(name)
            started.append(name)
        return tuple(started)

    def stop(self) -> None:
        """End the four processes and release the folder. May be called repeatedly, and before start()."""
        for sign, wait_s in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
            running = [process for process in self._processes.values() if process.poll() is None]
            for process in running:
                os.killpg(process.pid, sign)  # not reaped yet, so the group id has not been reused
            deadline = time.monotonic() + wait_s
            for process in running:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
        self._processes.clear()
        if self._spawner is not None:
            self._spawner.shutdown()
            self._spawner = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> SwiftServer:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _prepare(self) -> None:
        data = self.folder / "data" / "d1"
        for path in (data, self.folder / "recon"):
            path.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._lock_fd = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmbeddedStoreError(
                f"{self.folder}: another embedded store runs in this folder; stop it, or use another folder"
            ) from None
        try:
            os.setxattr(data, "user.orch", b"1")
        except OSError as error:
            raise EmbeddedStoreError(
                f"{self.folder}: this file system does not support extended attributes ({error.strerror}), "
                "which the embedded store needs; use a folder on another file system"
            ) from error
        self._credentials = load_or_make_credentials(self.folder)
        inner = self._choose_ports()
        self._inner = dict(zip(INNER_SERVERS, inner, strict=True))
        write_swift(self.folder, self.bind_ip, self.port, self._inner)
        made = self._run_child("rings", str(self.folder), *map(str, inner), timeout_s=60)
        if made.returncode:
            raise EmbeddedStoreError(
                f"{self.folder}: the store's rings cannot be written ({_last_line(made.stderr)}); "
                f"remove {self._environment}, then start again"
            )

    def _choose_ports(self) -> list[int]:
        answer = self._run_child("ports", self.bind_ip, str(self.port), timeout_s=30)
        if answer.returncode:
            raise EmbeddedStoreError(
                f"the embedded store's Python cannot be run ({_last_line(answer.stderr)}); "
                f"remove {self._environment}, then start again"
            )
        result = json.loads(answer.stdout)
        if "error" in result:
            where = ":".join(map(str, result["address"]))
            if result["errno"] == errno.EADDRINUSE:
                raise PortTakenError(f"{where} is in use by another program; end it or choose another port")
            raise EmbeddedStoreError(
                f"cannot listen on {where} ({result['error']}); choose another address or port"
            )
        self.port, *inner = result["ports"]
        return inner

    def _spawn(self, name: str) -> None:
        assert self._spawner is not None
        self._processes[name] = self._spawner.submit(self._start_process, name).result()

    def _start_process(self, name: str) -> subprocess.Popen[bytes]:
        conf = str(self.folder / f"{name}-server.conf")
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self._command("serve", name, conf),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_child_environment(),
                start_new_session=True,
                preexec_fn=_Preparation(self._enter, os.getpid()),
            )

    def _run_child(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env=_child_environment(),
            timeout=timeout_s,
            check=False,
            preexec_fn=self._enter,
        )

    def _command(self, *arguments: str) -> list[str]:
        assert self._environment is not None
        return [str(self._environment / "bin/python"), "-I", str(_CHILD), *arguments]

    def _ended(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        reason = _last_line(log.read_text(errors="replace")) if log.exists() else ""
        return f"the embedded store's {name} server ended ({reason or 'no output'}); check {log}, then start again"


class _Preparation:
    """Runs in the child between fork and exec, so it must be short and must not take locks."""

    def __init__(self, enter: Callable[[], None] | None, parent: int) -> None:
        self._enter = enter
        self._parent = parent
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def __call__(self) -> None:
        if self._enter is not None:
            self._enter()
        # After `enter`: the kernel clears the death signal when the process's credentials change.
        if self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        if os.getppid() not in (self._parent, 0):
            os._exit(1)  # the parent died in between (0: it is outside this PID namespace)


def _child_environment() -> dict[str, str]:
    """The environment of Swift's processes, without credentials, Python settings and proxies."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR", "TZ") if key in os.environ}
    # eventlet's DNS replacement takes time at start-up, and all addresses here are numeric.
    return {**kept, "EVENTLET_NO_GREENDNS": "yes"}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
