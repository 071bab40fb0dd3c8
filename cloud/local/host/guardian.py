"""The outer end of an emulated cloud: makes its namespaces, waits for its end, removes what it left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud.local.network import kernel
from cloud.local.options import LocalOptions

HOST_FILE, LOCK_FILE, TEMP_FILE = "host.json", "host.lock", "temp"
_GONE_S = 3.0  # from SIGKILL to the last of a group's processes


def write_json(path: Path, content: Any) -> None:
    """Replace a file at once; only the user may read it, since some hold keys."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    os.replace(fresh, path)


def guard(cloud_folder: Path, host: Callable[[Path, LocalOptions, Path, bool], None]) -> int:
    """Run `host(cloud_folder, options, temp, namespaces)` in namespaces of its own until it ends.

    Three processes: this one outside, one that goes into fresh user (unless root), mount and PID namespaces
    and forks the host, and the host, which is PID 1: with it, however it dies, everything in there dies.
    """
    options = LocalOptions.load(cloud_folder / "options.json")
    lock = os.open(cloud_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{cloud_folder}: the emulated cloud of this run is up already", file=sys.stderr)  # noqa: T201
        return 1
    _remove_temp(cloud_folder)
    temp = Path(_short_temp()) / f"orch-{secrets.token_hex(4)}"
    (cloud_folder / TEMP_FILE).write_text(str(temp))
    temp.mkdir(mode=0o700)
    (temp / "t").mkdir()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    if sys.platform == "linux":
        kernel.adopt_orphans()
    try:
        why, status = "", 0
        namespaces = options.mode != "loopback" and sys.platform == "linux"
        if namespaces:
            why, status = _in_namespaces(lambda: host(cloud_folder, options, temp, True), temp)
        if options.mode == "namespaces" and (why or not namespaces):
            _end_with(
                cloud_folder,
                f"this machine does not let us make namespaces ({why or sys.platform}); "
                "use mode auto or loopback (no distance), or run as root",
            )
            return 1
        if why or not namespaces:
            status = _plain(lambda: host(cloud_folder, options, temp, False))
            _end_groups(cloud_folder)
        _end_with(
            cloud_folder,
            f"the emulated cloud's host process died ({_say(status)}); see {cloud_folder}/host.log",
        )
        return int(status != 0)
    finally:
        shutil.rmtree(temp, ignore_errors=True)  # by its own name: somebody may have removed the run's folder
        _remove_temp(cloud_folder)


def _short_temp() -> str:
    """A folder for sockets: their paths may have 108 bytes."""
    wished = os.environ.get("TMPDIR", "/tmp")
    return wished if len(wished) < 50 and os.access(wished, os.W_OK) else "/tmp"


def _in_namespaces(host: Callable[[], None], temp: Path) -> tuple[str, int]:
    """(why namespaces cannot be made or "", the host's wait status)."""
    heard, says = os.pipe()
    guardian = os.getpid()
    middle = os.fork()
    if middle == 0:
        os.close(heard)
        _run(lambda: _middle(host, temp, says, guardian))
    os.close(says)
    try:
        why = os.read(heard, 4096).decode()
        return why, os.waitpid(middle, 0)[1]
    except BaseException:
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        raise
    finally:
        os.close(heard)


def _middle(host: Callable[[], None], temp: Path, says: int, guardian: int) -> None:
    """Go into fresh namespaces, fork the host, wait for it; tell over `says` if it cannot be."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    kernel.end_with_parent(signal.SIGKILL)
    if os.getppid() != guardian:
        os._exit(1)
    try:
        _enter(temp)
    except OSError as error:
        os.write(says, str(error).encode())
        return
    pid = os.fork()
    if pid == 0:
        kernel.end_with_parent(signal.SIGKILL)
        try:
            _try_network()
        except OSError as error:
            os.write(says, str(error).encode())
            os._exit(0)
        os.close(says)
        _run(host)
    os.close(says)
    os._exit(_exit_code(os.waitpid(pid, 0)[1]))


def _enter(temp: Path) -> None:
    uid, gid = os.getuid(), os.getgid()
    try:
        if uid != 0:
            raise PermissionError
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    except PermissionError:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
        kernel.map_own_user(uid, gid)
    kernel.own_mounts()
    kernel.mount_tmpfs(str(temp / "t"))
    if Path("/dev/shm").is_dir():  # shared memory of killed processes goes with the namespace too
        kernel.mount_tmpfs("/dev/shm", "1777")


def _try_network() -> None:
    """Raises OSError where network namespaces cannot be made. (Only now: the first child is PID 1, ended with all.)"""
    pid = os.fork()
    if pid == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    if code := _exit_code(os.waitpid(pid, 0)[1]):
        raise OSError(code, f"network namespace: {os.strerror(code)}")


def _plain(host: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        if sys.platform == "linux":
            kernel.end_with_parent(signal.SIGKILL)
        _run(host)
    try:
        return os.waitpid(pid, 0)[1]
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _run(host: Callable[[], None]) -> None:
    try:
        host()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:  # noqa: BLE001 a forked process must not unwind
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _say(status: int) -> str:
    code = _exit_code(status)
    return f"signal {code - 128}" if code > 128 else f"exit {code}"


def _end_with(cloud_folder: Path, fatal: str) -> None:
    """Write down the end of a host that could not do so itself."""
    path = cloud_folder / HOST_FILE
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError):
        state = {"vms": [], "nodes": {}}
    if state.get("state") == "ended":
        return
    now = time.time()
    for vm in state["vms"]:
        if vm["state"] in ("pending", "running"):
            vm.update(state="failed", ended_at_s=now, cause=fatal)
    if not cloud_folder.is_dir():
        return
    write_json(path, {**state, "state": "ended", "fatal": state.get("fatal") or fatal, "ended_s": now})


def _end_groups(cloud_folder: Path) -> None:
    """Loopback only: no PID namespace ended the VMs' processes with the host. Waits until they are gone."""
    try:
        vms = json.loads((cloud_folder / HOST_FILE).read_text())["vms"]
    except (OSError, ValueError):
        return
    groups = [vm["host_pid"] for vm in vms if vm["host_pid"]]
    deadline = time.monotonic() + _GONE_S
    while groups := [group for group in groups if _kill_group(group)]:
        for group in groups:
            with contextlib.suppress(ChildProcessError):  # a guardian has adopted them: the dead wait for it
                while os.waitpid(-group, os.WNOHANG)[0]:
                    pass
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _kill_group(group: int) -> bool:
    """Whether there was anybody to kill."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_alive(cloud_folder: Path) -> bool:
    """Whether an emulated cloud's guardian holds this folder."""
    try:
        lock = os.open(cloud_folder / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def reap(run_folder: Path) -> bool:
    """Remove what a killed guardian left of a run's emulated cloud; False: it is still alive, nothing was done."""
    cloud_folder = run_folder / "cloud"
    if is_alive(cloud_folder):
        return False
    if cloud_folder.is_dir():
        _remove_temp(cloud_folder)
        if (cloud_folder / HOST_FILE).exists():
            _end_groups_if_loopback(cloud_folder)
            _end_with(cloud_folder, "the emulated cloud's host process was killed")
    return True


def _end_groups_if_loopback(cloud_folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        state = json.loads((cloud_folder / HOST_FILE).read_text())
        if state.get("mode") == "loopback" and state.get("state") != "ended":
            _end_groups(cloud_folder)


def _remove_temp(cloud_folder: Path) -> None:
    try:
        temp = Path((cloud_folder / TEMP_FILE).read_text())
    except OSError:
        return
    if temp.name.startswith("orch-"):
        shutil.rmtree(temp, ignore_errors=True)
    (cloud_folder / TEMP_FILE).unlink(missing_ok=True)
