"""Processes of a VM: forked from the warm host, in the VM's namespace, ended without a trace."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from cloud.local.network import kernel

_PASSES = 50  # of killing a VM's processes; a fork bomb would need more


def call(program: str, *arguments: object) -> object:
    """Call "module:function"."""
    module, _, function = program.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments)


def start(
    program: str,
    arguments: Sequence[object],
    *,
    ns_fd: int | None,
    folder: Path,
    temp: Path,
    environment: Mapping[str, str],
    close: Sequence[int],
) -> tuple[int, int]:
    """Fork a program; returns its pid as this process and as the machine's /proc see it."""
    heard, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(heard)
            _become(ns_fd, folder, temp, environment, close)
            os.write(
                says, os.readlink("/proc/self").encode() if sys.platform == "linux" else b"%d" % os.getpid()
            )
            os.close(says)
            result = call(program, *arguments)
            code = result if isinstance(result, int) else 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 a forked process must not unwind
            traceback.print_exc()
            code = 1
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
        os._exit(code)
    os.close(says)
    told = os.read(heard, 64)
    os.close(heard)
    return pid, int(told or 0)


def _become(
    ns_fd: int | None, folder: Path, temp: Path, environment: Mapping[str, str], close: Sequence[int]
) -> None:
    """In the child: leave everything of the host behind."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    if sys.platform == "linux":
        kernel.end_with_parent(signal.SIGKILL)
    if ns_fd is not None:
        kernel.enter_network(ns_fd)
    for fd in close:
        with contextlib.suppress(OSError):
            os.close(fd)
    log = os.open(folder / "console.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, number)
    temp.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = None  # the warm process may have looked it up already
    os.environ.update({**environment, "TMPDIR": str(temp)})
    os.chdir(folder)


def namespace_inode(ns_fd: int) -> int:
    """What tells one namespace from another."""
    return os.fstat(ns_fd).st_ino


def end_surely(ns_fd: int | None, leader: int | None) -> None:
    """`end_all` until nothing is left; without a `leader` nothing was started."""
    if leader is None:
        return
    inode = None if ns_fd is None else namespace_inode(ns_fd)
    for _ in range(_PASSES):
        if not end_all(inode, leader):
            return
        time.sleep(0.005)


def end_all(inode: int | None, leader: int | None) -> int:
    """SIGKILL what lives in a network namespace, or (None: loopback) in the session of `leader`.

    Returns how many processes were hit. A forking process may slip through one pass: call until 0.
    """
    hit = 0
    if leader is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    if sys.platform != "linux":
        return 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if inode is not None:
                theirs = os.stat(f"/proc/{entry}/ns/net").st_ino == inode
            else:
                theirs = leader is not None and _session(entry) == leader
            if theirs and (pid := _own_number(entry)) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
                hit += 1
        except (OSError, ValueError):
            continue  # gone meanwhile, or a process of the machine that we may not look at
    return hit


def _session(entry: str) -> int:
    text = Path(f"/proc/{entry}/stat").read_text()
    return int(text.rsplit(")", 1)[1].split()[3])


def _own_number(entry: str) -> int | None:
    """The pid by which this process (maybe in a PID namespace of its own) knows /proc/<entry>; None: a dead one."""
    number = None
    for line in Path(f"/proc/{entry}/status").read_text().splitlines():
        if line.startswith("State:") and line.split()[1] in "ZX":
            return None
        if line.startswith("NSpid:"):
            number = int(line.split()[-1])
    return number


def outer_pid(pid: int | None) -> int | None:
    """A child's pid as the machine's /proc names it."""
    if pid is None or sys.platform != "linux":
        return pid
    for entry in Path("/proc/thread-self/children").read_text().split():
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{entry}/status").read_text().splitlines():
                if line.startswith("NSpid:") and int(line.split()[-1]) == pid:
                    return int(entry)
    return None
