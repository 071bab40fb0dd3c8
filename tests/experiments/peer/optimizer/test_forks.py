"""Forked processes inherit no lock that is never released."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import struct
import termios
import threading
import time
from pathlib import Path

import pytest
from hivemind.utils.asyncio import _AsyncContextWrapper
from hivemind.utils.mpfuture import MPFuture, SharedBytes

from experiments.log_file import LogFile
from experiments.wire.hivemind import patches
from experiments.wire.hivemind.patches import own_locks

pytestmark = pytest.mark.processes


def lines_of_a_fork(handler: logging.Handler, reader: int) -> int:
    """Fork while another thread is writing a line; returns the exit code of the child, which also logs a line."""
    long = threading.Thread(target=handler.handle, args=[line("x" * 300_000)])
    long.start()
    while struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))[0] < 60_000:
        time.sleep(0.01)  # until the pipe is full
    child = os.fork()
    if child == 0:
        signal.alarm(2)
        handler.handle(line("from the child"))
        os._exit(0)
    logged, status = b"", None
    while status is None or long.is_alive():
        with contextlib.suppress(BlockingIOError):
            logged += os.read(reader, 1 << 20)
        if status is None:
            ended, found = os.waitpid(child, os.WNOHANG)
            status = found if ended else None
        time.sleep(0.001)
    with contextlib.suppress(BlockingIOError):
        logged += os.read(reader, 1 << 20)
    code = os.waitstatus_to_exitcode(status)
    assert (b"from the child\n" in logged) == (code == 0)
    return code


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("peer", logging.INFO, "file", 1, text, (), None)


@pytest.fixture
def pipe(tmp_path: Path) -> tuple[Path, int]:
    """A file that accepts 64 KiB until it is read."""
    os.mkfifo(tmp_path / "log")
    return tmp_path / "log", os.open(tmp_path / "log", os.O_RDWR | os.O_NONBLOCK)


def test_process_forked_during_a_write_can_log(pipe: tuple[Path, int]) -> None:
    handler = LogFile(pipe[0])
    assert lines_of_a_fork(handler, pipe[1]) == 0
    handler.close()


def test_standard_file_handler_deadlocks(pipe: tuple[Path, int]) -> None:
    """If this fails, Python re-creates the locks of its files in a child, and LogFile can be removed."""
    handler = logging.FileHandler(pipe[0])
    assert lines_of_a_fork(handler, pipe[1]) == -signal.SIGALRM
    handler.close()


def test_first_process_of_a_vm_does_not_share_hiveminds_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        (MPFuture, "_initialization_lock"),
        (MPFuture, "_update_lock"),
        (SharedBytes, "_lock"),
        (_AsyncContextWrapper, "EXECUTOR_LOCK"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    for (owner, name), lock in zip(names, before, strict=True):
        monkeypatch.setattr(owner, name, lock)  # and back at the end
    monkeypatch.setattr(MPFuture, "_active_pid", MPFuture._active_pid)
    monkeypatch.setattr(patches, "_locks_of", 0)  # another test may have applied it to this process
    own_locks()
    made = MPFuture._update_lock
    own_locks()
    assert MPFuture._update_lock is made
    assert all(getattr(owner, name) is not lock for (owner, name), lock in zip(names, before, strict=True))
