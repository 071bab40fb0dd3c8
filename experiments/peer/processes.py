"""Process management: Hivemind's child processes are killed when the peer ends, whatever the reason."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path

from experiments.wire.hivemind.sockets import short_socket_folder

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = Path("/dev/shm")
_recorded_pids: set[int] = set()  # this process and all descendants ever recorded


def kill_children_with_parent() -> None:
    """Make the kernel kill every child forked from now on when this process dies.

    The children ignore SIGTERM and SIGINT: a signal to the process group must not kill the DHT before this process
    has used it to leave the swarm.
    """
    parent = os.getpid()
    libc = _libc()  # loaded before the fork

    def in_child() -> None:
        if os.getppid() == parent:
            _follow_parent(libc)

    os.register_at_fork(after_in_child=in_child)


def die_with_parent(parent: int) -> None:
    """Do the same in this process, which was not forked but started as a new program by the process `parent`.

    Linux means the thread that started it: this process is killed when that thread ends. If the parent ended before this
    call, this process ends now.
    """
    _follow_parent(_libc())
    if os.getppid() != parent:
        os._exit(1)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _follow_parent(libc: ctypes.CDLL | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def descendants(of: int) -> list[int]:
    """List the process ids of all descendants of `of`, deepest last; empty without /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{of}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def record_descendants() -> None:
    """Record this process's descendants. Call it once all are started: some end before the next call."""
    _recorded_pids.update({os.getpid(), *descendants(os.getpid())})


def kill_descendants() -> None:
    """SIGKILL all descendants of this process and remove the shared memory they leave behind.

    Hivemind shares tensors through named files (torch_<pid>_...). Torch's manager process would remove them, but it is
    killed too. Python's resource tracker is not killed: it removes the semaphores of spawned processes and ends with
    the last of them.
    """
    record_descendants()
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    for pid in descendants(os.getpid()):
        if pid == tracker:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in _recorded_pids if _SHARED_MEMORY.is_dir() else ():
        for file in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                file.unlink()


def own_temporary_folder() -> Path:
    """Create a folder below TMPDIR and use it as TMPDIR from now on, also for Hivemind's sockets.

    Raises SocketFolderError if its path is too long for a socket.
    """
    folder = Path(tempfile.mkdtemp(prefix="p-"))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    try:
        short_socket_folder()
    except Exception:
        remove_folder(folder)
        raise
    return folder


def run_within(seconds: float, work: Callable[[], None]) -> None:
    """Run `work` in a thread and wait at most `seconds` for it. Its errors are logged."""

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - during shutdown: the other components still have to be stopped
            _log.warning("leaving: %r", error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)


def remove_folder(folder: Path) -> None:
    """Remove the folder and its contents; errors are ignored."""
    shutil.rmtree(folder, ignore_errors=True)


class Departure:
    """Ends this peer on request: SIGTERM or SIGINT, a preemption notice, an expired lease.

    `stop` is set at once, or by the caller once the running round is over. If the process has not ended `soft_s` after
    the request, `cut_short` runs in the watchdog thread, then the process exits. `limit_s` after the request it exits
    in any case. Of several requests the earliest deadline counts.
    """

    def __init__(
        self, stop: threading.Event, cut_short: Callable[[], None], soft_s: float, limit_s: float
    ) -> None:
        """`soft_s`, `limit_s`: the deadlines for a signal."""
        self._stop, self._cut_short = stop, cut_short
        self._signal_s = (soft_s, limit_s)
        self._soft_at = self._hard_at = math.inf
        self.code = 0  # the process's exit code
        self._requested = threading.Event()
        threading.Thread(target=self._watch, name="departure", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    @property
    def requested(self) -> bool:
        """Whether this peer was asked to leave."""
        return self._requested.is_set()

    @property
    def soft_left_s(self) -> float:
        """Seconds until `cut_short` runs; infinite without a request."""
        return self._soft_at - time.monotonic()

    def leave(self, soft_s: float, limit_s: float, *, code: int = 0, at_once: bool = True) -> None:
        """Request this process to end within `limit_s`. Without `at_once` the caller sets `stop` itself later."""
        now = time.monotonic()
        self._soft_at, self._hard_at = min(self._soft_at, now + soft_s), min(self._hard_at, now + limit_s)
        self.code = self.code or code
        if at_once:
            self._stop.set()
        self._requested.set()

    def _handle(self, _number: int, _frame: object) -> None:
        self.leave(*self._signal_s)

    def _watch(self) -> None:
        self._requested.wait()
        threading.Thread(target=self._enforce_limit, name="departure-limit", daemon=True).start()
        while time.monotonic() < self._soft_at:
            time.sleep(0.05)
        try:
            self._cut_short()
        finally:
            _end_now(self.code)

    def _enforce_limit(self) -> None:
        while time.monotonic() < self._hard_at:
            time.sleep(0.05)
        _end_now(self.code)


def _end_now(code: int) -> None:
    kill_descendants()
    os._exit(code)
