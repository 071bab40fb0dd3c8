"""The option --spot: imports, files and folders with histories of spot capacity, for the places of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from analysis.spot.timeline import covered
from cloud.places import nearest
from cloud.spot.history import History
from cloud.spot.sources import read_history
from cloud.spot.text import LARGEST_BYTES, HistoryError
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from orchestrator.errors import UsageError
from orchestrator.spot_store import load, stored_names

EVERY = "*"
_SUFFIXES = (".json", ".csv", ".txt")


def histories_of(
    spec: ExperimentSpec, options: Sequence[str], home: Path, now_s: float
) -> tuple[dict[str, History], list[str]]:
    """Histories of the locations at which the experiment uses spot VMs, which have a time in common; as `read_histories`.

    Raises UsageError besides if it uses no spot VM, or if they have none.
    """
    requested = [place for slot in slots(spec) for place in slot.places]
    places = list(dict.fromkeys(place.infra for place in requested if place.use_spot))
    if not places:
        raise UsageError(f"--spot: {spec.name} uses no spot VM; set use_spot: true at its places")
    histories, notes = read_histories(options, places, home, now_s)
    begins_s, ends_s = covered(histories)
    if ends_s <= begins_s:
        first = min(histories.values(), key=lambda history: history.end_s)
        last = max(histories.values(), key=lambda history: history.times_s[0])
        raise UsageError(
            f"--spot: {first.source} ends at {first.end_s:.0f} s, before {last.source} begins at "
            f"{last.times_s[0]:.0f} s; use histories of the same time"
        )
    return histories, notes


def read_histories(
    options: Sequence[str], places: Sequence[str], home: Path, now_s: float
) -> tuple[dict[str, History], list[str]]:
    """Histories by location, in the order of `places`, and what to tell the user.

    `places`: the locations at which the experiment uses spot VMs. What is no path is the name of an import of this home.
    `now_s`: Unix time, after which no history can end. Raises UsageError for a file that cannot be read, that
    belongs to none of them, or to one that has another already, and for a place without a history.
    """
    try:
        return _read_histories(options, places, home, now_s)
    except OSError as error:  # a name that no file can have
        raise UsageError(f"--spot: {str(error.filename)[:80]} cannot be read: {error.strerror}") from error


def _read_histories(
    options: Sequence[str], places: Sequence[str], home: Path, now_s: float
) -> tuple[dict[str, History], list[str]]:
    """Implement `read_histories`. Raises OSError besides."""
    found: dict[str, History] = {}
    notes: list[str] = []
    of_others: History | None = None
    for option in options:
        name, path = _split(option)
        if path.is_dir():
            if name:
                raise UsageError(f"--spot {option}: a folder has a file for each place; write --spot {path}")
            notes += _read_folder(path, places, found, now_s)
        elif name == EVERY:
            if of_others is not None:
                raise UsageError(f"--spot {option}: there is already a history for every other place")
            of_others = _read(path, home, now_s)
        else:
            history = _read(path, home, now_s)
            matching = _located(name or history.place or _zone_of(path), places)
            if not matching and name:
                raise UsageError(
                    f"--spot: '{name}' is no place with spot VMs of this experiment ({', '.join(places)})"
                    f"{nearest(name, [*places, *(place.rpartition('/')[2] for place in places)])}"
                )
            if not matching:
                raise UsageError(
                    f"--spot {path}: its name is no zone of this experiment ({', '.join(places)}); write --spot "
                    f"PLACE={path}, or --spot '*={path}' for every place without its own history"
                )
            for location in matching:
                _put(found, location, history)
    for location in places:
        if location not in found and of_others is not None:
            found[location] = of_others
    missing = [location for location in places if location not in found]
    if missing:
        raise UsageError(
            f"--spot: no history for {', '.join(missing)}, where the experiment uses spot VMs; add --spot "
            f"{missing[0]}=FILE, or --spot '*=FILE' for every place without its own history"
        )
    ordered = {location: found[location] for location in places}
    return ordered, [*notes, *_alike(ordered)]


def _split(option: str) -> tuple[str, Path]:
    """The name before "=", or "", and the path. A path that exists may have a "=" in it."""
    name, separator, path = option.partition("=")
    return ("", Path(option)) if not separator or Path(option).exists() else (name.strip(), Path(path))


def _read(path: Path, home: Path, now_s: float) -> History:
    name = path.name
    if not path.exists() and name == str(path) and (not path.suffix or name in stored_names(home)):
        return load(name, home)
    return _read_file(path, now_s)


def _read_file(path: Path, now_s: float) -> History:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--spot: {path} cannot be read: {error.strerror or error}") from error
    try:
        return read_history(str(path), content, now_s)
    except HistoryError as error:
        raise UsageError(f"--spot: {error}") from error


def _read_folder(folder: Path, places: Sequence[str], found: dict[str, History], now_s: float) -> list[str]:
    """Read the files whose names begin with a zone of the experiment, as "us-east-1a_v100_1.json"."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    used = [(path, location) for path in files for location in _located(_zone_of(path), places)]
    if not used:
        raise UsageError(
            f"--spot {folder}: no file is named after a zone of this experiment ({', '.join(places)}), as in "
            f"{places[0].rpartition('/')[2]}_v100_1.json; write --spot PLACE=FILE"
        )
    for path, location in used:
        _put(found, location, _read_file(path, now_s))
    ignored = len(files) - len({path for path, _ in used})
    return [f"{folder}: {ignored} files of other zones are not used"] if ignored else []


def _put(found: dict[str, History], location: str, history: History) -> None:
    if location in found:
        raise UsageError(
            f"--spot: two histories for {location}, {found[location].source} and {history.source}; write --spot "
            f"{location}=FILE for one of them"
        )
    found[location] = history


def _zone_of(path: Path) -> str:
    """The zone that a file is named after: "us-east-1a" for us-east-1a_v100_1.json."""
    return path.name.partition(".")[0].partition("_")[0]


def _located(name: str, places: Iterable[str]) -> list[str]:
    """The locations that this is: one with this name, or all whose last part is this."""
    return [location for location in places if name in (location, location.rpartition("/")[2])]


def _alike(histories: dict[str, History]) -> list[str]:
    """What to say of places that share a history, and of histories of one VM."""
    places: dict[tuple[str, str], int] = {}
    for history in histories.values():
        key = (history.sha256, history.source)
        places[key] = places.get(key, 0) + 1
    sources: dict[str, list[str]] = {}
    for sha256, source in places:
        sources.setdefault(sha256, []).append(source)
    return [
        *(
            f"{count} places have the history of {source}: they lose and get capacity at the same moments"
            for (_, source), count in places.items()
            if count > 1
        ),
        *(f"{' and '.join(group)} have the same bytes" for group in sources.values() if len(group) > 1),
    ]
