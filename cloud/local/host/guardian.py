"""The outermost process of an emulated cloud: creates its namespaces, waits for its end and cleans up."""

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
_GONE_S = 3.0  # from SIGKILL until all processes of a group are gone


def write_json(path: Path, content: Any) -> None:
    """Replace a file atomically; readable by the user only, since some files contain keys."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    os.replace(fresh, path)


def guard(cloud_folder: Path, host: Callable[[Path, LocalOptions, Path, bool], None]) -> int:
    """Run `host(cloud_folder, options, temp, namespaces)` in its own namespaces until it ends.

    Uses three processes: this one outside; one that enters new user (unless root), mount and PID namespaces and forks the
    host; and the host, which is PID 1 there, so that all processes inside die with it, however it ends.
    """
    options = LocalOptions.load(cloud_folder / "options.json")
    lock = os.open(cloud_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{cloud_folder}: the emulated cloud of this run is already running", file=sys.stderr)  # noqa: T201
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
                f"this machine does not allow creating namespaces ({why or sys.platform}); "
                "use mode auto or loopback (no distance), or run as root",
            )
            return 1
        if why or not namespaces:
            status = _plain(lambda: host(cloud_folder, options, temp, False))
            _end_groups(cloud_folder)
        _end_with(
            cloud_folder,
            f"the emulated cloud's host process died ({_describe(status)}); see {cloud_folder}/host.log",
        )
        return int(status != 0)
    finally:
        shutil.rmtree(temp, ignore_errors=True)  # by name, since the run's folder may have been removed
        _remove_temp(cloud_folder)


def _short_temp() -> str:
    """Return a folder for sockets, whose paths are limited to 108 bytes."""
    requested = os.environ.get("TMPDIR", "/tmp")
    return requested if len(requested) < 50 and os.access(requested, os.W_OK) else "/tmp"


def _in_namespaces(host: Callable[[], None], temp: Path) -> tuple[str, int]:
    """Return (why namespaces cannot be created or "", the host's wait status)."""
    read_end, write_end = os.pipe()
    guardian = os.getpid()
    middle = os.fork()
    if middle == 0:
        os.close(read_end)
        _run(lambda: _middle(host, temp, write_end, guardian))
    os.close(write_end)
    try:
        why = os.read(read_end, 4096).decode()
        return why, os.waitpid(middle, 0)[1]
    except BaseException:
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        raise
    finally:
        os.close(read_end)


def _middle(host: Callable[[], None], temp: Path, write_end: int, guardian: int) -> None:
    """Enter new namespaces, fork the host and wait for it; write the error to `write_end` if that fails."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    kernel.end_with_parent(signal.SIGKILL)
    if os.getppid() != guardian:
        os._exit(1)
    try:
        _enter(temp)
    except OSError as error:
        os.write(write_end, str(error).encode())
        return
    pid = os.fork()
    if pid == 0:
        kernel.end_with_parent(signal.SIGKILL)
        try:
            _try_network()
        except OSError as error:
            os.write(write_end, str(error).encode())
            os._exit(0)
        os.close(write_end)
        _run(host)
    os.close(write_end)
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
    kernel.make_mounts_private()
    kernel.mount_tmpfs(str(temp / "t"))
    if Path("/dev/shm").is_dir():  # so that shared memory of killed processes is freed with the namespace
        kernel.mount_tmpfs("/dev/shm", "1777")


def _try_network() -> None:
    """Raise OSError if network namespaces cannot be created. Not checked earlier, since the first child becomes PID 1."""
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


def _describe(status: int) -> str:
    code = _exit_code(status)
    return f"signal {code - 128}" if code > 128 else f"exit {code}"


def _end_with(cloud_folder: Path, fatal: str) -> None:
    """Record the end of a host that could not do so itself."""
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
    """End the VMs' processes and wait until they are gone; loopback only, where no PID namespace ends them."""
    try:
        vms = json.loads((cloud_folder / HOST_FILE).read_text())["vms"]
    except (OSError, ValueError):
        return
    groups = [vm["host_pid"] for vm in vms if vm["host_pid"]]
    deadline = time.monotonic() + _GONE_S
    while groups := [group for group in groups if _kill_group(group)]:
        for group in groups:
            with contextlib.suppress(ChildProcessError):  # this process may have adopted them: reap them
                while os.waitpid(-group, os.WNOHANG)[0]:
                    pass
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _kill_group(group: int) -> bool:
    """Send SIGKILL to a process group; returns whether it had any processes."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_alive(cloud_folder: Path) -> bool:
    """Whether the guardian of an emulated cloud holds this folder's lock."""
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
    """Clean up after a killed guardian of a run's emulated cloud; False if it is alive, in which case nothing is done."""
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
