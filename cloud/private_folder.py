"""A folder that only this user can read or write, or a reason why there is none."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


class NotPrivateError(Exception):
    """A folder is somebody else's, or others may use it."""


def private_folder(path: Path) -> Path:
    """Make the folder (0700) in one that is there, or check that it is ours alone. Raises NotPrivateError, OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivateError(f"{path}: is no folder; remove it")
    if found.st_uid != os.getuid():
        raise NotPrivateError(f"{path}: belongs to user {found.st_uid}, not to you; ask for its removal")
    if found.st_mode & 0o077:
        raise NotPrivateError(f"{path}: others may use it; `chmod 700 {path}`")
    return path
