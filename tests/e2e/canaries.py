"""Looks for known secret values in files, shared memory and command lines, in the forms they might be written in."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

_AS_IS_BYTES = 24  # so much of a key's middle is enough to know it by


def forms(value: bytes) -> list[bytes]:
    """The value as it is, in hexadecimal, and in Base64 wherever it stands in what was encoded."""
    found = [value, value.hex().encode(), value.hex().upper().encode()]
    for before in range(3):
        # The characters at both ends depend on the neighbours' bytes.
        text = base64.b64encode(b"\0" * before + value)
        found.append(text[4 if before else 0 : -4])
    return found


def private_keys(folder: Path) -> dict[str, bytes]:
    """A piece from the middle of every private key below a folder, by its path."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*.key")):
        content = path.read_bytes()
        if path.name.endswith("environment.key"):
            continue
        if b"PRIVATE KEY" in content:
            lines = [line for line in content.split(b"\n") if line and not line.startswith(b"-----")]
            content = base64.b64decode(lines[len(lines) // 2])
        middle = len(content) // 2
        found[str(path.relative_to(folder))] = content[middle : middle + _AS_IS_BYTES]
    return found


def in_bytes(content: bytes, values: Mapping[str, bytes]) -> list[str]:
    """Names of the values that are in there in any form."""
    return [name for name, value in values.items() if any(form in content for form in forms(value))]


def in_files(
    values: Mapping[str, bytes], folders: Iterable[Path], skip: Collection[Path] = ()
) -> dict[Path, list[str]]:
    """Files below the folders that have one of the values, with the values' names. `skip`: folders left out."""
    found: dict[Path, list[str]] = {}
    wanted = {name: forms(value) for name, value in values.items()}
    for path in _files(folders, skip):
        try:
            content = path.read_bytes()
        except OSError:  # gone meanwhile, or a socket
            continue
        names = [name for name, shapes in wanted.items() if any(shape in content for shape in shapes)]
        if names:
            found[path] = names
    return found


def in_command_lines(values: Mapping[str, bytes]) -> list[str]:
    """Command lines of all processes of this machine that have one of the values (as `ps` shows them)."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        found += [f"{name} in {line[:200]!r}" for name in in_bytes(line, values)]
    return found


def exposed_files(paths: Iterable[Path]) -> list[str]:
    """Those of the files that another user of this machine could read: no folder above them keeps him out."""
    found: list[str] = []
    for path in paths:
        try:
            modes = [p.stat().st_mode for p in (path, *path.parents)]
        except OSError:
            continue
        if modes[0] & stat.S_IROTH and all(mode & stat.S_IXOTH for mode in modes[1:]):
            found.append(str(path))
    return found


def _files(folders: Iterable[Path], skip: Collection[Path]) -> Iterable[Path]:
    for folder in folders:
        for at, below, names in os.walk(folder, onerror=None):
            below[:] = [name for name in below if Path(at, name) not in skip]
            for name in names:
                path = Path(at, name)
                try:
                    if stat.S_ISREG(path.lstat().st_mode):
                        yield path
                except OSError:
                    continue
