"""Folders that only this user can read or write."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


class NotPrivateError(Exception):
    """A folder belongs to another user, or other users may access it."""


def private_folder(path: Path) -> Path:
    """Create the folder (0700; its parent must exist), or check that it is private. Raises NotPrivateError, OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivateError(f"{path}: is not a folder; remove it")
    if found.st_uid != os.getuid():
        raise NotPrivateError(f"{path}: belongs to user {found.st_uid}, not to you; ask for its removal")
    if found.st_mode & 0o077:
        raise NotPrivateError(f"{path}: other users may access it; run `chmod 700 {path}`")
    return path
