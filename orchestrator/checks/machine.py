"""Checks of this machine: packages, disk, memory, ports, namespaces. Starts at most one child process."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from cloud.local.host.faults import available_memory
from cloud.local.network.links import tun_usable
from cloud.local.options import LocalOptions
from cloud.targets import TARGETS
from orchestrator.checks.findings import Finding

_PORTS = {46580: "SkyPilot's API server", 50011: "the queue of SkyPilot's API server"}
_SKYPILOT = "0.14."
_API_SERVER_BYTES = 2_000_000_000  # its eight processes; measured with SkyPilot 0.14.1

_UNSHARE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
flags = 0x40000000 if os.getuid() == 0 else 0x50000000  # CLONE_NEWNET, CLONE_NEWUSER
if libc.unshare(flags):
    raise SystemExit(os.strerror(ctypes.get_errno()))
"""


class Listener(NamedTuple):
    """A process listening on a port of this machine."""

    pid: int | None  # None: another user's process, or one in a container
    command: str


def versions(on: str) -> list[Finding]:
    """Versions of Python, orch and the packages that a run needs."""
    found = [
        Finding("version python", "ok", platform.python_version()),
        Finding("version orch", "ok", version("orch")),
    ]
    install = f"`{TARGETS[on].install}` in a clone of orch"
    for package in TARGETS[on].packages:
        try:
            there = version(package)
            known = package != "skypilot" or there.startswith(_SKYPILOT)
            hint = (
                "" if known else f"run {install} for SkyPilot {_SKYPILOT}x, the version orch is tested with"
            )
            found.append(Finding(f"version {package}", "ok" if known else "warning", there, hint))
        except PackageNotFoundError:
            found.append(Finding(f"version {package}", "missing", "not installed", install))
    return found


def disk(home: Path, on: str) -> Finding:
    """Free space where runs are kept, and whether the folder is writable."""
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):  # leaves nothing; permissions alone do not tell
            pass
    except OSError as error:
        why = f"{home} cannot be written: {there}: {error.strerror}"
        return Finding("disk", "missing", why, "set ORCH_HOME to a folder you can write to")
    free_bytes = shutil.disk_usage(there).free
    found = f"{free_bytes / 1e9:.1f} GB free for {home}"
    needed_bytes = 2_000_000_000 if TARGETS[on].rents else 1_000_000_000
    if free_bytes >= needed_bytes:
        return Finding("disk", "ok", found)
    hint = f"free some space, since a run may take {needed_bytes / 1e9:.0f} GB, or set ORCH_HOME to a folder on another disk"
    return Finding("disk", "warning", found, hint)


def memory(on: str) -> Finding:
    """Free memory for local peers, or for SkyPilot's API server."""
    free_bytes = available_memory()
    if free_bytes is None:
        return Finding("memory", "unknown", "free memory cannot be determined on this system")
    found = f"{free_bytes / 1e9:.1f} GB free"
    if TARGETS[on].on_this_host:
        peers = free_bytes // LocalOptions().peer_memory_bytes
        if peers:
            return Finding("memory", "ok", f"{found}: enough for {peers} peers")
        return Finding("memory", "missing", f"{found}: not enough for one peer", "free some memory")
    if free_bytes >= _API_SERVER_BYTES:
        return Finding("memory", "ok", found)
    return Finding(
        "memory",
        "warning",
        found,
        f"free some memory: SkyPilot's API server takes {_API_SERVER_BYTES / 1e9:.0f} GB",
    )


def namespaces() -> Finding:
    """Whether the emulated cloud can emulate distance: network namespaces, with a link into each."""
    if sys.platform != "linux":
        return Finding(
            "namespaces",
            "warning",
            f"not available on {sys.platform}",
            "peers run on loopback without network distance; use Linux to emulate distance",
        )
    tried = subprocess.run(
        [sys.executable, "-c", _UNSHARE], capture_output=True, text=True, timeout=30, check=False
    )
    if tried.returncode:
        hint = (
            "peers run on loopback without network distance; run as root, or allow user namespaces "
            "(kernel.unprivileged_userns_clone)"
        )
        return Finding("namespaces", "warning", f"not allowed: {tried.stderr.strip()}", hint)
    return Finding("namespaces", "ok", f"usable, with {'TUN' if tun_usable() else 'veth'} links")


def ports() -> list[Finding]:
    """The two ports of SkyPilot's API server, which needs both."""
    there = listeners(Path("/proc"), _PORTS)
    return [_port(number, there) for number in _PORTS]


def _port(number: int, there: Mapping[int, Listener]) -> Finding:
    name, who = f"port {number}", there.get(number)
    if who is None:
        return Finding(name, "ok", f"free for {_PORTS[number]}")
    owner = (
        f"in use by pid {who.pid} ({who.command[:120]})" if who.pid else "in use by another user's process"
    )
    of_sky = who.command.startswith("SkyPilot:") or "sky.server.server" in who.command.split()
    if of_sky and len(there) == len(_PORTS):
        return Finding(name, "ok", f"{owner}: SkyPilot's API server is running")
    kill = f"end it (`kill {who.pid}`)" if who.pid else "ask its owner to end it"
    if of_sky:
        return Finding(
            name, "missing", f"{owner}: left over from an API server that died; no new one can start", kill
        )
    return Finding(
        name, "missing", owner, f"{kill}: SkyPilot's API server needs this port and cannot use another one"
    )


def listeners(proc: Path, wanted: Mapping[int, str]) -> dict[int, Listener]:
    """Find the processes listening on the wanted TCP ports in /proc; {} without /proc."""
    inodes: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            number = int(fields[1].rpartition(":")[2], 16)
            if number in wanted and fields[3] == "0A":  # TCP_LISTEN
                inodes[f"socket:[{fields[9]}]"] = number
    found = {number: Listener(None, "") for number in inodes.values()}
    for folder in proc.glob("[0-9]*") if inodes else ():
        for number in {inodes[link] for link in _links(folder / "fd") if link in inodes}:
            found[number] = Listener(int(folder.name), _command(folder))
    return found


def _links(folder: Path) -> list[str]:
    links: list[str] = []
    try:
        for name in os.listdir(folder):
            links.append(os.readlink(folder / name))
    except OSError:  # another user's process, or it has just ended
        pass
    return links


def _command(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return ""
    return " ".join(words)
