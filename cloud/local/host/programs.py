"""Processes of a VM: forked from the preloaded host, run in the VM's namespace, and killed completely."""

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

_PASSES = 50  # of killing a VM's processes; only a fork bomb would need more


def call(program: str, *arguments: object) -> object:
    """Call "module:function" with the arguments."""
    module, _, function = program.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments)


def start(
    program: str,
    arguments: Sequence[object],
    *,
    ns_fd: int | None,
    folder: Path,
    title: str,
    temp: Path,
    environment: Mapping[str, str],
    close: Sequence[int],
) -> tuple[int, int]:
    """Fork a program; returns its pid as seen by this process and by the machine's /proc. `title`: for `ps`."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            _become(ns_fd, folder, title, temp, environment, close)
            os.write(
                write_end,
                os.readlink("/proc/self").encode() if sys.platform == "linux" else b"%d" % os.getpid(),
            )
            os.close(write_end)
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
    os.close(write_end)
    outer = os.read(read_end, 64)
    os.close(read_end)
    return pid, int(outer or 0)


def _become(
    ns_fd: int | None,
    folder: Path,
    title: str,
    temp: Path,
    environment: Mapping[str, str],
    close: Sequence[int],
) -> None:
    """Turn the forked child into a process of the VM: drop the host's signals, descriptors and environment."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    if sys.platform == "linux":
        kernel.end_with_parent(signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError, IndexError):  # a program runs without its title, too
            kernel.name_process(title)
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
    tempfile.tempdir = None  # the preloaded host may have cached it
    os.environ.update({**environment, "TMPDIR": str(temp)})
    os.chdir(folder)


def namespace_inode(ns_fd: int) -> int:
    """Inode number that identifies a namespace."""
    return os.fstat(ns_fd).st_ino


def kill_until_gone(ns_fd: int | None, leader: int | None) -> None:
    """Call `kill_once` until no process is left; does nothing without a `leader`, since nothing was started."""
    if leader is None:
        return
    inode = None if ns_fd is None else namespace_inode(ns_fd)
    for _ in range(_PASSES):
        if not kill_once(inode, leader):
            return
        time.sleep(0.005)


def kill_once(inode: int | None, leader: int | None) -> int:
    """Send SIGKILL to all processes of a network namespace, or (None: loopback) of the session of `leader`.

    Returns the number of processes hit. A process that forks may escape one pass, so call this until it returns 0.
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
            continue  # ended meanwhile, or a process that may not be inspected
    return hit


def _session(entry: str) -> int:
    text = Path(f"/proc/{entry}/stat").read_text()
    return int(text.rsplit(")", 1)[1].split()[3])


def _own_number(entry: str) -> int | None:
    """Pid of /proc/<entry> in this process's own PID namespace; None for a dead process."""
    number = None
    for line in Path(f"/proc/{entry}/status").read_text().splitlines():
        if line.startswith("State:") and line.split()[1] in "ZX":
            return None
        if line.startswith("NSpid:"):
            number = int(line.split()[-1])
    return number


def outer_pid(pid: int | None) -> int | None:
    """Pid of a child as seen in the machine's /proc."""
    if pid is None or sys.platform != "linux":
        return pid
    for entry in Path("/proc/thread-self/children").read_text().split():
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{entry}/status").read_text().splitlines():
                if line.startswith("NSpid:") and int(line.split()[-1]) == pid:
                    return int(entry)
    return None
