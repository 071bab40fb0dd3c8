"""This peer's processes: Hivemind's children are killed when it ends, however it ends."""

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
from pathlib import Path

from experiments.wire.hivemind.sockets import short_socket_folder

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = Path("/dev/shm")
_family: set[int] = set()  # this process and all below it that were ever noted


def children_die_with_us() -> None:
    """Make the kernel kill every child forked from now on with this process; the children ignore SIGTERM and SIGINT.

    A signal to the whole group must not kill the DHT before this process has left the swarm through it.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def in_child() -> None:
        if os.getppid() != parent:
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    os.register_at_fork(after_in_child=in_child)


def descendants(of: int) -> list[int]:
    """Process ids below `of`, deepest last; empty where there is no /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{of}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def note_descendants() -> None:
    """Remember the processes below this one; call it once all are started (some end before we look again)."""
    _family.update({os.getpid(), *descendants(os.getpid())})


def kill_descendants() -> None:
    """SIGKILL everything below this process and remove the shared memory that all of them leave.

    Hivemind shares tensors through named files (torch_<pid>_...), which torch's own manager process
    would remove, were it not killed too.
    """
    note_descendants()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in _family if _SHARED_MEMORY.is_dir() else ():
        for file in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                file.unlink()


def own_temporary_folder() -> Path:
    """Make a folder below TMPDIR, use it as TMPDIR from now on, Hivemind's sockets included.

    Raises SocketFolderError when its path is too long for a socket.
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
    """Run `work` in a thread and wait for it at most `seconds`; an error of it is logged."""

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - on the way out: the other parts still have to be stopped
            _log.warning("leaving: %r", error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)


def remove_folder(folder: Path) -> None:
    """Remove the folder with what is in it."""
    shutil.rmtree(folder, ignore_errors=True)


class Departure:
    """Ends this peer on request: SIGTERM or SIGINT, the provider's notice, an expired lease.

    `stop` is set at once, or by whoever sees that the round under way is over. If the process has not ended
    `soft_s` after the request, `cut_short` runs in the watchdog's thread, then the process exits;
    `limit_s` after the request it exits in any case. Of several requests the earliest end counts.
    """

    def __init__(
        self, stop: threading.Event, cut_short: Callable[[], None], soft_s: float, limit_s: float
    ) -> None:
        """`soft_s`, `limit_s`: of a signal."""
        self._stop, self._cut_short = stop, cut_short
        self._signal_s = (soft_s, limit_s)
        self._soft_at = self._hard_at = math.inf
        self.code = 0  # the process's exit code
        self._asked = threading.Event()
        threading.Thread(target=self._watch, name="departure", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    @property
    def asked(self) -> bool:
        """Whether this peer was told to leave."""
        return self._asked.is_set()

    @property
    def soft_left_s(self) -> float:
        """Seconds until `cut_short` runs; infinite when nobody asked."""
        return self._soft_at - time.monotonic()

    def leave(self, soft_s: float, limit_s: float, *, code: int = 0, at_once: bool = True) -> None:
        """Be gone within `limit_s`. Not `at_once`: whoever asks sets `stop` when the time has come."""
        now = time.monotonic()
        self._soft_at, self._hard_at = min(self._soft_at, now + soft_s), min(self._hard_at, now + limit_s)
        self.code = self.code or code
        if at_once:
            self._stop.set()
        self._asked.set()

    def _handle(self, _number: int, _frame: object) -> None:
        self.leave(*self._signal_s)

    def _watch(self) -> None:
        self._asked.wait()
        threading.Thread(target=self._end_at_last, name="departure-limit", daemon=True).start()
        while time.monotonic() < self._soft_at:
            time.sleep(0.05)
        try:
            self._cut_short()
        finally:
            _end_now(self.code)

    def _end_at_last(self) -> None:
        while time.monotonic() < self._hard_at:
            time.sleep(0.05)
        _end_now(self.code)


def _end_now(code: int) -> None:
    kill_descendants()
    os._exit(code)
