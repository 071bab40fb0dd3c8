"""Short commands on a VM over ssh with SkyPilot's keys: limited in time, with one shared connection per VM."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import selectors
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from cloud.private_folder import NotPrivateError, private_folder

_log = logging.getLogger("cloud.sky")
_MOST_PRINTED_BYTES = 1_000_000  # output of a short command
_MOST_PACKED_BYTES = 64_000_000  # archive of a VM's files
_MOST_UNPACKED_BYTES = 512_000_000
_BLOCK_BYTES = 512  # of a tar
# A socket's path may have 107 bytes, which include ssh's name of the connection and a suffix while it is created.
_LONGEST_CONTROL_BYTES = 107 - len("/") - 40 - len(".") - 16


def ssh_command(address: str, how: Mapping[str, Any], control: Path | None) -> list[str]:
    """Return the ssh command line without the remote command. It contains no secret: the key is given as a file.

    `control`: folder of the shared connections; None: each command opens its own connection.
    """
    options = {
        "StrictHostKeyChecking": "no",  # like SkyPilot: the host key of a new VM is unknown
        "UserKnownHostsFile": os.devnull,
        "LogLevel": "ERROR",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "5",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "2",
    }
    if how.get("proxy"):
        options["ProxyCommand"] = str(how["proxy"])
    elif control is not None:
        options |= {"ControlMaster": "auto", "ControlPath": f"{control}/%C", "ControlPersist": "60s"}
    found = ["ssh", "-T", "-i", str(Path(str(how["key"])).expanduser()), "-p", str(how.get("port") or 22)]
    for name, value in options.items():
        found += ["-o", f"{name}={value}"]
    return [*found, f"{how['user']}@{address}"]


def run_on(address: str, how: Mapping[str, Any], command: str, timeout_s: float) -> str | None:
    """Run `command` on the VM and return its output; None if it fails, takes too long or prints more than 1 MB."""
    got = _run(address, how, command, timeout_s, _MOST_PRINTED_BYTES)
    return None if got is None else got.decode(errors="replace")


def fetch(
    address: str, how: Mapping[str, Any], folder: str, names: Sequence[str], to: Path, timeout_s: float
) -> list[str]:
    """Copy those of the named files that exist; returns the names of the copied files, none if there is no answer."""
    # $(ls) omits missing files, on which tar would fail.
    command = f"cd ~/{folder} 2>/dev/null && tar -czf - $(ls {' '.join(names)} 2>/dev/null)"
    got = _run(address, how, command, timeout_s, _MOST_PACKED_BYTES)
    if not got:
        return []
    return unpack(got, names, to)


def unpack(
    archive: bytes, names: Sequence[str], to: Path, most_bytes: int = _MOST_UNPACKED_BYTES
) -> list[str]:
    """Extract the named plain files of a tar.gz to the folder `to`; returns the names of those that were complete.

    Only reads what `fetch` creates (plain files with short names) and stops at anything else, and after `most_bytes` of
    content; tarfile would read a header of any size into memory. Raises OSError if `to` cannot be written.
    """
    came: list[str] = []
    left = most_bytes
    to.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with gzip.GzipFile(fileobj=BytesIO(archive)) as stream:
            while (header := stream.read(_BLOCK_BYTES)).strip(b"\0"):
                size = int(header[124:136].strip(b" \0"), 8)
                if not 0 <= size <= left:
                    raise ValueError(f"more than {most_bytes} bytes")
                left -= size
                name = header[:100].rstrip(b"\0").decode("ascii")
                # Only expected names are written, whatever the VM sends.
                wanted = name in names and header[156:157] in (b"0", b"\0")
                if _copy(stream, size, to / f".{name}.new" if wanted else None):
                    os.replace(to / f".{name}.new", to / name)
                    came.append(name)
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        _log.warning("%s: the archive of the VM's files is incomplete: %s", to.name, str(error)[:200])
    finally:
        for path in to.glob(".*.new"):
            path.unlink()
    return came


def _copy(stream: gzip.GzipFile, size: int, to: Path | None) -> bool:
    """Read the blocks of a member, writing them to `to` if given; returns whether they were written. Raises EOFError."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(to.open("wb")) if to is not None else None
        left = -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
        while left:
            chunk = stream.read(min(left, 1 << 20))
            if not chunk:
                raise EOFError("a file is incomplete")
            left -= len(chunk)
            if file is not None:
                file.write(chunk[: max(0, size)])
            size -= len(chunk)
    return to is not None


def close_connection(address: str, how: Mapping[str, Any]) -> None:
    """Close the shared connection to a VM, and remove the folder of connections with the last one."""
    control = _control()
    if address and how.get("key") and control is not None:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                [*ssh_command(address, how, control), "-O", "exit"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=5,
                check=False,
            )
        with contextlib.suppress(OSError):  # other connections are in use
            control.rmdir()


def _control() -> Path | None:
    """Return the folder of shared connections: private to this user, so that no other user can have created it.

    None if there is no private folder with a short enough path (a socket's path may have 107 bytes); each command then
    opens its own connection, which takes longer.
    """
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), str(Path.home() / ".cache"), str(Path.home())]
    for place in filter(None, places):
        path = Path(place) / "orch-ssh"
        if len(os.fsencode(path)) > _LONGEST_CONTROL_BYTES or not path.parent.is_dir():
            continue
        try:
            return private_folder(path)
        except (NotPrivateError, OSError) as error:
            _log.warning("connections to VMs cannot be shared: %s", error)
    return None


def _run(
    address: str, how: Mapping[str, Any], command: str, timeout_s: float, most_bytes: int
) -> bytes | None:
    if not address or not how.get("key"):
        return None
    control = _control()
    try:
        process = subprocess.Popen(
            [*ssh_command(address, how, control), command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # an ssh master in the background must not hold a pipe
        )
    except OSError:
        return None
    with process:
        try:
            return bounded_output(process, timeout_s, most_bytes)
        finally:
            process.kill()


def bounded_output(process: subprocess.Popen[bytes], timeout_s: float, most_bytes: int) -> bytes | None:
    """Return a process's output; None if it fails, takes longer than `timeout_s` or prints more than `most_bytes`."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + timeout_s
    got = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or len(got) > most_bytes or not selector.select(left_s):
                return None
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            got += chunk
    try:
        code = process.wait(max(0.1, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return bytes(got) if code == 0 else None
