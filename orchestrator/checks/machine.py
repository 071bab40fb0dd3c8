"""This machine: packages, disk, memory, ports, namespaces. Looks at files and starts one child at most."""

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
_EXTRA = {"ray": "local", "hivemind": "local", "torch": "local", "webdataset": "local", "skypilot": "sky"}
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
    """Who listens on a port of this machine."""

    pid: int | None  # None: another user's, or in a container
    command: str


def versions(on: str) -> list[Finding]:
    """Python, orch and the packages that a run needs."""
    found = [
        Finding("version python", "ok", platform.python_version()),
        Finding("version orch", "ok", version("orch")),
    ]
    for package in TARGETS[on].packages:
        try:
            there = version(package)
            known = package != "skypilot" or there.startswith(_SKYPILOT)
            hint = (
                ""
                if known
                else f"`pip install -e '.[sky]'` in a clone of orch brings SkyPilot {_SKYPILOT}x, the one orch is tested with"
            )
            found.append(Finding(f"version {package}", "ok" if known else "warning", there, hint))
        except PackageNotFoundError:
            hint = f"`pip install -e '.[{_EXTRA[package]}]'` in a clone of orch"
            found.append(Finding(f"version {package}", "missing", "not installed", hint))
    return found


def disk(home: Path, on: str) -> Finding:
    """Room where runs are kept, and whether anything can be written there."""
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):  # leaves nothing; what the permissions say is not all
            pass
    except OSError as error:
        why = f"nothing can be written for {home}: {there}: {error.strerror}"
        return Finding("disk", "missing", why, "set ORCH_HOME to a folder of yours")
    free_bytes = shutil.disk_usage(there).free
    found = f"{free_bytes / 1e9:.1f} GB free for {home}"
    room_bytes = 2_000_000_000 if TARGETS[on].rents else 1_000_000_000
    if free_bytes >= room_bytes:
        return Finding("disk", "ok", found)
    hint = (
        f"free some: a run may take {room_bytes / 1e9:.0f} GB; or set ORCH_HOME to a folder on another disk"
    )
    return Finding("disk", "warning", found, hint)


def memory(on: str) -> Finding:
    """Memory for peers here, or for SkyPilot's server."""
    free_bytes = available_memory()
    if free_bytes is None:
        return Finding("memory", "unknown", "this system does not say how much is free")
    found = f"{free_bytes / 1e9:.1f} GB free"
    if TARGETS[on].on_this_host:
        peers = free_bytes // LocalOptions().peer_memory_bytes
        if peers:
            return Finding("memory", "ok", f"{found}: room for {peers} peers")
        return Finding("memory", "missing", f"{found}: not enough for one peer", "free some memory")
    if free_bytes >= _API_SERVER_BYTES:
        return Finding("memory", "ok", found)
    return Finding(
        "memory", "warning", found, f"free some: SkyPilot's server takes {_API_SERVER_BYTES / 1e9:.0f} GB"
    )


def namespaces() -> Finding:
    """Whether the emulated cloud can have distance: network namespaces, and a link into each."""
    if sys.platform != "linux":
        return Finding(
            "namespaces",
            "warning",
            f"{sys.platform} has none",
            "peers run on loopback without distance; use Linux for it",
        )
    tried = subprocess.run(
        [sys.executable, "-c", _UNSHARE], capture_output=True, text=True, timeout=30, check=False
    )
    if tried.returncode:
        hint = "peers run on loopback without distance; run as root, or allow user namespaces (kernel.unprivileged_userns_clone)"
        return Finding("namespaces", "warning", f"not allowed: {tried.stderr.strip()}", hint)
    return Finding("namespaces", "ok", f"usable, links by {'TUN' if tun_usable() else 'veth'}")


def ports() -> list[Finding]:
    """The two ports that SkyPilot's API server takes on this machine, both or none."""
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
        return Finding(name, "ok", f"{owner}: SkyPilot's API server runs")
    kill = f"end it (`kill {who.pid}`)" if who.pid else "ask its owner"
    if of_sky:
        return Finding(
            name, "missing", f"{owner}: left over from an API server that died, and no other can start", kill
        )
    return Finding(name, "missing", owner, f"{kill}: SkyPilot's API server needs this port, and only this")


def listeners(proc: Path, wanted: Mapping[int, str]) -> dict[int, Listener]:
    """Who listens on the wanted TCP ports, as /proc shows it; {} where there is no /proc."""
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
    except OSError:  # another user's, or it has just ended
        pass
    return links


def _command(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return ""
    return " ".join(words)
