"""Short commands on a VM, over the keys that SkyPilot made: bounded in time, one connection a VM."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any


def ssh_command(address: str, how: Mapping[str, Any], control: Path) -> list[str]:
    """The ssh command line, without what to run. No secret is on it: the key is named by its file."""
    options = {
        "StrictHostKeyChecking": "no",  # as SkyPilot does: the key of a new VM is known to nobody
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
    else:
        options |= {"ControlMaster": "auto", "ControlPath": f"{control}/%C", "ControlPersist": "60s"}
    found = ["ssh", "-T", "-i", str(Path(str(how["key"])).expanduser()), "-p", str(how.get("port") or 22)]
    for name, value in options.items():
        found += ["-o", f"{name}={value}"]
    return [*found, f"{how['user']}@{address}"]


def run_on(address: str, how: Mapping[str, Any], command: str, timeout_s: float) -> str | None:
    """What `command` prints on the VM; None when the VM did not answer in time or the command failed."""
    got = _run(address, how, command, timeout_s)
    return None if got is None else got.decode(errors="replace")


def fetch(
    address: str, how: Mapping[str, Any], folder: str, names: Sequence[str], to: Path, timeout_s: float
) -> list[str]:
    """Copy the files of these names that are there; returns those that came. Not there, no answer: none."""
    # $(ls) leaves out those that are not there; tar would fail on them.
    command = f"cd ~/{folder} 2>/dev/null && tar -czf - $(ls {' '.join(names)} 2>/dev/null)"
    got = _run(address, how, command, timeout_s)
    if not got:
        return []
    came: list[str] = []
    to.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        contextlib.suppress(tarfile.TarError, EOFError),
        tarfile.open(fileobj=BytesIO(got), mode="r:gz") as archive,
    ):
        for member in archive:
            if member.name not in names or not member.isfile():
                continue  # a VM does not choose what is written here
            content = archive.extractfile(member)
            if content is None:
                continue
            fresh = to / f".{member.name}.new"
            fresh.write_bytes(content.read())
            os.replace(fresh, to / member.name)
            came.append(member.name)
    return came


def hang_up(address: str, how: Mapping[str, Any]) -> None:
    """End the connection that is kept to a VM; with the last one the folder of such connections goes."""
    control = _control()
    if address and how.get("key") and control.is_dir():
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            subprocess.run(
                [*ssh_command(address, how, control), "-O", "exit"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=5,
                check=False,
            )
        with contextlib.suppress(OSError):  # others are in use
            control.rmdir()


def _control() -> Path:
    # Short: the path of a control socket may have about 100 characters.
    return Path(tempfile.gettempdir()) / f"orch-ssh-{os.getuid()}"


def _run(address: str, how: Mapping[str, Any], command: str, timeout_s: float) -> bytes | None:
    if not address or not how.get("key"):
        return None
    control = _control()
    control.mkdir(mode=0o700, exist_ok=True)
    if control.stat().st_uid != os.getuid() or control.is_symlink():
        return None
    try:
        done = subprocess.run(
            [*ssh_command(address, how, control), command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a master that stays in the background must not hold our pipe
            timeout=timeout_s,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout if done.returncode == 0 else None
