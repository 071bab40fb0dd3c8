"""Options of a trace: numbers of workers, the link, and the files that are written."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from cloud.storage.link import Link

_MOST_WORKERS = 256
_MOST_STREAMS = 64
_MOST_BATCHES = 100_000


def worker_counts(text: str) -> tuple[int, ...]:
    """Parse "1,2,4" into different numbers, in ascending order. Raises UsageError."""
    counts = list[int]()
    for part in text.split(","):
        if (
            not part.strip().isascii()
            or not part.strip().isdigit()
            or not 1 <= int(part[:9]) <= _MOST_WORKERS
        ):
            raise UsageError(
                f"--workers: '{part.strip()[:40]}' is not a whole number from 1 to {_MOST_WORKERS}; write one, or several "
                "such as 1,2,4"
            )
        counts.append(int(part))
    if len(set(counts)) < len(counts):
        raise UsageError(f"--workers {text[:40]}: a number is given twice; leave one out")
    return tuple(sorted(counts))


def parsed_link(text: str) -> Link:
    """Parse "210,103". Raises UsageError."""
    from cloud.storage.link import Link

    try:
        return Link.parse(text[:80])
    except ValueError as error:
        raise UsageError(f"--link: {error}") from error


def check_batches(batches: int) -> None:
    """Raises UsageError for a number out of range."""
    if not 1 <= batches <= _MOST_BATCHES:
        raise UsageError(f"--batches {batches}: use a whole number from 1 to {_MOST_BATCHES}")


def check_streams(streams: int) -> None:
    """Raises UsageError for a number out of range."""
    if not 1 <= streams <= _MOST_STREAMS:
        raise UsageError(f"--streams {streams}: use a whole number from 1 to {_MOST_STREAMS}")


def check_file(option: str, path: Path) -> None:
    """Check that a file can be written later. Raises UsageError."""
    try:
        if path.is_dir():
            raise UsageError(f"{option}: {path} is a folder; name a file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        raise UsageError(
            f"{option}: {path} cannot be written ({error.strerror}); name another file"
        ) from error


def check_folder(option: str, path: Path) -> None:
    """Check that files can be written later into a folder, which is made then if there is none. Raises UsageError."""
    try:
        if path.exists() and not path.is_dir():
            raise UsageError(f"{option}: {path} is not a folder; name another one")
        above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise UsageError(
            f"{option}: {path} cannot be written ({error.strerror or error}); choose another folder"
        ) from error


@contextlib.contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Raise UsageError for what the system refuses while `path` is written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option}: {path} cannot be written ({error.strerror}); name another one"
        ) from error
