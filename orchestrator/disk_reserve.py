"""Disk space that a run reserves, so that its end can still be recorded when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from metrics.store.database import DiskFullError

_FILE = "reserve"
_BYTES = 16_000_000  # for the journal, the last rows and SkyPilot's records of the VMs it terminates


def keep_reserve(folder: Path) -> None:
    """Allocate the reserve. Raises OSError."""
    descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _BYTES)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise  # these mean that the file system cannot preallocate: nothing is reserved
    finally:
        os.close(descriptor)


def free_reserve(folder: Path) -> bool:
    """Release the reserve. Returns whether there was one."""
    try:
        (folder / _FILE).unlink()
    except OSError:
        return False
    return True


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error means that the disk is full."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, DiskFullError)
