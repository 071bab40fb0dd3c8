"""Room on the disk that a run keeps, so that its end can be written down when everything else is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from metrics.store.database import DiskFullError

_FILE = "reserve"
_BYTES = 16_000_000  # the journal, the last rows, and SkyPilot's own records of the VMs it ends


def keep_reserve(folder: Path) -> None:
    """Take the room. Raises OSError."""
    descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise  # else the file system has no such call: nothing is kept
    finally:
        os.close(descriptor)


def free_reserve(folder: Path) -> bool:
    """Give the room back; whether there was any."""
    try:
        (folder / _FILE).unlink()
    except OSError:
        return False
    return True


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that the disk has no room."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, DiskFullError)
