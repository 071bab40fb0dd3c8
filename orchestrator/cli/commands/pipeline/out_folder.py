"""The folder of a measurement, checked before it begins."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path


def check_writable(folder: Path) -> None:
    """Make a file in the folder and remove it again, with the folders that were missing. Raises UsageError."""
    from orchestrator.errors import UsageError

    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"--out: {folder} cannot be written ({error.strerror or error}); choose another folder"
        ) from error
    finally:
        for one in missing:
            with contextlib.suppress(OSError):  # was not made, or is in use by now
                one.rmdir()
