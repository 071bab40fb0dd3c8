"""Looks for known secret values in all of a world: the run, SkyPilot's home with its databases and logs, EC2's user-data
and tags, its own log, shared memory, every command line."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from canaries import in_bytes, in_command_lines, in_files, private_keys
from fate import instances, user_data
from running import Running

__all__ = ["found_in_world", "secrets_of"]


def secrets_of(run: Running, **known: str) -> dict[str, bytes]:
    """The values given, and a piece of each private key that the run has now."""
    return {name: value.encode() for name, value in known.items()} | private_keys(run.folder / "keys")


def found_in_world(run: Running, values: dict[str, bytes], *, while_it_lives: bool = False) -> list[str]:
    """Where one of the values is and may not be (docs/promises.md, "Secrets"): within `<run>/keys` while the run lives, and
    in the VMs themselves. Their disks are files of the world's: not searched."""
    state = Path(os.environ["FAKE_EC2_STATE"])
    folders = [run.home, run.home.parent / "t", Path.home(), Path("/dev/shm")]
    files = in_files(values, folders) | in_files(values, [state], skip=(state / "vms", Path.home()))
    allowed = [run.folder / "keys"] if while_it_lives else []
    told = [f"{path}: {', '.join(names)}" for path, names in files.items() if not _within(path, allowed)]
    if not while_it_lives:  # whose key lies in SkyPilot's database for a day or so
        told += [f"{path} is left" for at in (run.home, Path.home()) for path in at.rglob("sealed")]
    for instance, data in user_data().items():
        told += [f"user-data of {instance}: {name}" for name in in_bytes(_decoded(data), values)]
    told += [f"EC2's list: {name}" for name in in_bytes(json.dumps(instances()).encode(), values)]
    return told + in_command_lines(values)


def _within(path: Path, folders: list[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _decoded(data: str) -> bytes:
    return data.encode() + b"\n" + base64.b64decode(data or "")
