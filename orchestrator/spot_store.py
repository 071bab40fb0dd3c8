"""Imported spot histories, prices and bands in the home folder, one file each: `<home>/spot/<name>.json`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cloud.spot.history import History
from cloud.spot.sources import read_source, recognise
from cloud.spot.stored import Stored, read_any, read_stored, write_stored
from cloud.spot.text import LARGEST_BYTES, HistoryError
from orchestrator.errors import UsageError
from orchestrator.home import make_home, spot_folder

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

Outcome = Literal["imported", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class Import:
    """One file that is read and checked, and what storing it under its name does."""

    name: str
    stored: Stored
    outcome: Outcome


def load(name: str, home: Path) -> History:
    """Read the imported history of capacity `name`. Raises UsageError, HistoryError."""
    return read_stored(find(name, home))


def find(name: str, home: Path) -> Path:
    """The file of the import `name`. Raises UsageError, also for a name that no import can have."""
    path = _path(name, home)
    if not path.is_file():
        names = stored_names(home)
        some = f" (there are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''})" if names else ""
        raise UsageError(
            f"{name}: no such import{some}; `orch spot ls` lists them, `orch spot import FILE` adds one"
        )
    return path


def stored_names(home: Path) -> list[str]:
    """Names of all imports, sorted. Raises UsageError."""
    folder = spot_folder(home)
    try:
        found = [file.name.removesuffix(".json") for file in folder.iterdir() if file.suffix == ".json"]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{folder}: cannot list the spot histories: {error.strerror}") from error
    return sorted(name for name in found if _NAME.fullmatch(name))


def read_all(home: Path) -> tuple[dict[str, Stored], list[str]]:
    """Every import by name, and a sentence for each that cannot be read. Raises UsageError."""
    found: dict[str, Stored] = {}
    problems: list[str] = []
    for name in stored_names(home):
        try:
            found[name] = read_any(_path(name, home))
        except HistoryError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{_path(name, home)}:1: cannot be read: {error.strerror}")
    return found, problems


def read_imports(
    files: Sequence[Path],
    form: str,
    place: str | None,
    accelerator: str | None,
    name: str,
    now_s: float,
    home: Path,
) -> list[Import]:
    """Read sources, and decide what storing each does; nothing is written.

    `form`: a key of `FORMATS`, or auto. `name`: that of the only file, "" for names from the files' names.
    `place` and `accelerator`: None leaves those of an earlier import of the same source. Raises UsageError,
    HistoryError.
    """
    found = [_read_import(file, form, place, accelerator, name, now_s, home) for file in files]
    twice = [each for each, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        raise UsageError(
            f"{twice[0]}: two of the files would have this name; import them one by one with --name"
        )
    return found


def write_import(found: Import, home: Path) -> None:
    """Store what was read, unless it is there already. Raises OSError."""
    if found.outcome != "unchanged":
        make_home(home)
        spot_folder(home).mkdir(mode=0o700, exist_ok=True)
        write_stored(_path(found.name, home), found.stored)


def remove(name: str, home: Path) -> None:
    """Remove an import, readable or not. Raises UsageError, OSError."""
    find(name, home).unlink()


def _read_import(
    file: Path, form: str, place: str | None, accelerator: str | None, name: str, now_s: float, home: Path
) -> Import:
    content = _content(file)
    chosen = recognise(str(file), content) if form == "auto" else form
    record = read_source(str(file), content, chosen, now_s)
    record = replace(record, source=file.name, place=place, accelerator=accelerator)
    name = name or re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).lstrip("._-")[:63]
    path = _path(name, home)
    return _decided(name, Stored(chosen, record), read_any(path) if path.exists() else None)


def _decided(name: str, new: Stored, old: Stored | None) -> Import:
    """What storing `new` does where `old` is stored under the same name. Raises UsageError."""
    if old is None:
        return Import(name, new, "imported")
    if old.record.sha256 != new.record.sha256:
        raise UsageError(
            f"{name}: is already the name of an import of {old.record.source} with other bytes (sha256 "
            f"{old.record.sha256[:12]}); choose another with --name, or remove that one with `orch spot rm {name}`"
        )
    place, accelerator = (
        new.record.place or old.record.place,
        new.record.accelerator or old.record.accelerator,
    )
    stored = Stored(new.form, replace(new.record, place=place, accelerator=accelerator))
    same = replace(stored.record, source=old.record.source) == old.record and stored.form == old.form
    return Import(name, old if same else stored, "unchanged" if same else "updated")


def _content(file: Path) -> bytes:
    """The bytes of a source. Raises UsageError, HistoryError."""
    if not file.is_file():
        raise UsageError(f"{file}: {'is not a regular file' if file.exists() else 'no such file'}")
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    if len(content) > LARGEST_BYTES:
        raise HistoryError(f"{file}:1: the file is larger than {LARGEST_BYTES} bytes")
    return content


def _path(name: str, home: Path) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r}: the name of an import has a-z, 0-9, '.', '_' and '-', starts with a letter or digit, and "
            "has at most 63 characters; `orch spot import FILE --name NAME` chooses one"
        )
    return spot_folder(home) / f"{name}.json"
