"""The write-ahead journal of a study: one JSON object per line, synced to disk before the action is taken.

A truncated last line, left by a writer that died, is ignored. Any other unreadable line is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.study.core import Begun, Ended, Retry, Started, StudyEvent
from orchestrator.study.verdict import Disturbance

JOURNAL = "journal.jsonl"
_KINDS: dict[str, type[StudyEvent]] = {
    "started": Started, "begun": Begun, "ended": Ended, "retry": Retry,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _KINDS.items()}


class StudyJournal:
    """A study's journal, open for writing by the process that holds the study's lock."""

    def __init__(self, folder: Path) -> None:
        """Open the journal and truncate an incomplete last line. Raises UsageError, OSError."""
        self._path = folder / JOURNAL
        self.events: list[StudyEvent] = list(read_journal(folder))
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, _whole_bytes(self._path.read_bytes()))
        os.lseek(self._fd, 0, os.SEEK_END)
        _sync_folder(folder)

    def append(self, event: StudyEvent) -> None:
        """Write an event and sync it to disk. If it raises OSError, the event is not recorded."""
        line = json.dumps({"kind": _NAMES[type(event)], **asdict(event)}, ensure_ascii=False) + "\n"
        rest = memoryview(line.encode())
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        os.fsync(self._fd)
        self.events.append(event)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_journal(folder: Path) -> Sequence[StudyEvent]:
    """Read all events of a study; none if it has not begun. Raises UsageError for an invalid line."""
    path = folder / JOURNAL
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = content[: _whole_bytes(content)].splitlines()
    return [_event(line, path, number) for number, line in enumerate(lines, 1)]


def _whole_bytes(content: bytes) -> int:
    """Number of bytes up to and including the last complete line."""
    return content.rfind(b"\n") + 1


def _event(line: bytes, path: Path, number: int) -> StudyEvent:
    try:
        row: dict[str, Any] = json.loads(line)
        kind = _KINDS[row.pop("kind")]
        known: dict[str, Any] = {name: row[name] for name in kind.__dataclass_fields__ if name in row}
        lists: dict[str, Any] = {name: tuple(v) for name, v in known.items() if isinstance(v, list)}
        if kind is Ended:
            lists["disturbances"] = _disturbances(row)
        return kind(**{**known, **lists})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}:{number}: invalid line in a study's journal ({type(error).__name__}: {error}); restore the file, or "
            "remove the study's folder and run the study again"
        ) from error


def _disturbances(row: Mapping[str, Any]) -> tuple[Disturbance, ...]:
    """Return the codes of an "ended" line. Lines of versions without codes are read by the start of their sentences."""
    if "disturbances" in row:
        return tuple(Disturbance(code) for code in row["disturbances"])
    return tuple(
        Disturbance.HOST_BUSY if text.startswith("the host was too busy") else Disturbance.DROPPED_ROUNDS
        for text in row.get("disturbed", ())
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
