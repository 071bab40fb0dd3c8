"""This peer's processes and its end: Hivemind's children die with it, whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from metrics.hivemind_sockets import short_socket_folder

__all__ = [
    "Departure",
    "children_die_with_us",
    "descendants",
    "kill_descendants",
    "note_descendants",
    "own_temporary_folder",
    "remove_folder",
]

_PR_SET_PDEATHSIG = 1
_SHARED_MEMORY = Path("/dev/shm")
_family: set[int] = set()  # this process and all below it that were ever noted


def children_die_with_us() -> None:
    """From now on every forked child is killed when this process dies, and leaves SIGTERM to it.

    A signal to the whole group must not kill the DHT before this process has said goodbye through it.
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


def remove_folder(folder: Path) -> None:
    """Remove the folder with what is in it."""
    shutil.rmtree(folder, ignore_errors=True)


class Departure:
    """SIGTERM (or SIGINT) asks this peer to leave; `limit_s` later the process ends whatever it does.

    `stop` is set at once. If the process has not ended `soft_s` later (it waits for a round),
    `last_words` runs in the watchdog's thread, then the process exits 0.
    """

    def __init__(
        self, stop: threading.Event, last_words: Callable[[], None], soft_s: float, limit_s: float
    ) -> None:
        self._stop, self._last_words = stop, last_words
        self._soft_s, self._limit_s = soft_s, limit_s
        self._asked = threading.Event()
        threading.Thread(target=self._watch, name="departure", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    @property
    def asked(self) -> bool:
        """Whether this peer was told to leave."""
        return self._asked.is_set()

    def _handle(self, _number: int, _frame: object) -> None:
        self._stop.set()
        self._asked.set()

    def _watch(self) -> None:
        self._asked.wait()
        hard = threading.Timer(self._limit_s, _end_now)
        hard.daemon = True
        hard.start()
        threading.Event().wait(self._soft_s)
        try:
            self._last_words()
        finally:
            _end_now()


def _end_now() -> None:
    kill_descendants()
    os._exit(0)
