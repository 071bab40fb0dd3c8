"""A pure-Python wheel for tests, written without tools."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str = "mine", number: str = "1.0", requires: tuple[str, ...] = ()) -> Path:
    """Write a pure-Python wheel with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{number}-py3-none-any.whl"
    info = f"{name}-{number}.dist-info"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n",
        *(f"Requires-Dist: {r}\n" for r in requires),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 7\n")
        archive.writestr(f"{info}/METADATA", "".join(lines))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
