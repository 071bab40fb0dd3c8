"""Assigns log files to runs, roles and hosts, by the index if there is one, otherwise by the files' names."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.importers.base import ImportFailed
from analysis.importers.wandb.words import accelerator, host_part, model_name

INDEX_NAME = "INDEX.csv"
_NAME = re.compile(r"(?P<run>[A-Za-z]+-\d+)-(?P<rest>.+?)\.csv(?:\.gz)?", re.ASCII)
_ROLES = ("bee", "monitor", "baseline")


@dataclass(frozen=True, slots=True)
class Log:
    """One file and what is known about it before it is opened."""

    path: Path
    shown: str  # the path in messages, relative to the folder
    run_id: str
    role: str  # bee, monitor or baseline
    host: str
    place: str  # the index's location, otherwise the host's name
    gpu: str | None  # "T4:1"
    model: str | None  # a name of models.csv, or the original text if it matches none
    label: str | None = None
    target_batch_size: int | None = None


@dataclass
class RunLogs:
    """The files of one run."""

    run_id: str
    logs: list[Log] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def label(self) -> str | None:
        return next((log.label for log in self.logs if log.label), None)

    @property
    def model(self) -> str | None:
        return next((log.model for log in self.logs if log.model), None)

    @property
    def target_batch_size(self) -> int | None:
        return next((log.target_batch_size for log in self.logs if log.target_batch_size), None)


def parse_name(path: Path, shown: str) -> Log | None:
    """Parse run, role, host, model and GPU from `hivemind-81-gc-t4-1.csv.gz`; None if it is not a log's name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    run_id, rest = match["run"], match["rest"]
    if "monitor" in rest.lower():
        return Log(path, shown, run_id, "monitor", rest, "", None, None)
    model, host = host_part(rest)
    role = "baseline" if run_id.lower().startswith("baseline") else "bee"
    return Log(path, shown, run_id, role, host, host, accelerator(host), (model_name(model) or model) or None)


def looks_like_logs(folder: Path) -> bool:
    """Whether the folder contains an index or a file named like a log."""
    return (folder / INDEX_NAME).is_file() or any(_NAME.fullmatch(p.name) for p in _csv_files(folder))


def discover(folder: Path, index: Path | None, only: Sequence[str]) -> tuple[list[RunLogs], list[str]]:
    """Return the runs of a folder with their files, in the index's order (otherwise by name), and the problems.

    Raises ImportFailed if `index` is given and cannot be used.
    """
    problems: list[str] = []
    runs: list[RunLogs] | None = None
    found = index or folder / INDEX_NAME
    if index is not None or found.is_file():
        try:
            runs = _from_index(found, folder)
        except _BadIndex as error:
            if index is not None:
                raise ImportFailed(
                    f"{error} Give another one with --index, or leave the option out."
                ) from error
            problems.append(f"{error} Runs and hosts are taken from the files' names instead.")
    if runs is None:
        runs, more = _from_names(folder)
        problems += more
    if only:
        names = [run.run_id for run in runs]
        for wanted in only:
            if wanted not in names:
                near = difflib.get_close_matches(wanted, names, n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                problems.append(f"{folder}: no run '{wanted}'{hint}")
        runs = [run for run in runs if run.run_id in only]
    return runs, problems


def _csv_files(folder: Path) -> Iterator[Path]:
    return (p for p in folder.rglob("*") if p.name.endswith((".csv", ".csv.gz")) and p.is_file())


def _shown(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _from_names(folder: Path) -> tuple[list[RunLogs], list[str]]:
    runs: dict[str, RunLogs] = {}
    unnamed: list[str] = []
    for path in sorted(_csv_files(folder)):
        if path.name == INDEX_NAME:
            continue
        shown = _shown(path, folder)
        log = parse_name(path, shown)
        if log is None:
            unnamed.append(shown)
        else:
            runs.setdefault(log.run_id, RunLogs(log.run_id)).logs.append(log)
    problems = [
        f"{name}: skipped, because its name has no run and host (like hivemind-81-gc-t4-1.csv); list it in an index."
        for name in unnamed
    ]
    return [runs[key] for key in sorted(runs, key=_natural)], problems


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


class _BadIndex(Exception):
    """The index cannot be used."""


def _from_index(index: Path, folder: Path) -> list[RunLogs]:
    try:
        text = index.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(text.splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not CSV text"
        raise _BadIndex(f"{index}: the index cannot be read: {reason}.") from error
    rows = [{(key or "").strip().lower(): value for key, value in row.items()} for row in rows]
    if not rows or "file" not in rows[0]:
        raise _BadIndex(f"{index}:1: the index has no rows, or no column 'file'.")
    by_base: dict[str, list[Path]] = {}
    for path in sorted(_csv_files(folder)):
        by_base.setdefault(path.name.removesuffix(".gz"), []).append(path)
    runs: dict[str, RunLogs] = {}
    for line, row in enumerate(rows, 2):
        cells = {key: (value or "").strip() for key, value in row.items() if isinstance(value, str)}
        name = cells.get("file", "")
        path = _locate(name, index.parent, folder, by_base)
        known = parse_name(Path(name), name)
        run_id = cells.get("run_id") or (known.run_id if known else "")
        if not name or not run_id:
            continue
        run = runs.setdefault(run_id, RunLogs(run_id))
        if path is None:
            run.notes.append(f"{index.name}:{line}: {name} does not exist.")
            continue
        run.logs.append(
            _of_row(cells, path, _shown(path, folder), run_id, known, run, f"{index.name}:{line}")
        )
    return list(runs.values())


def _locate(name: str, index_folder: Path, folder: Path, by_base: Mapping[str, list[Path]]) -> Path | None:
    for path in (index_folder / name, folder / name):
        if name and path.is_file():
            return path
    same = by_base.get(Path(name).name.removesuffix(".gz"), [])  # elsewhere in the folder, compressed or not
    return same[0] if len(same) == 1 else None


def _of_row(
    cells: Mapping[str, str], path: Path, shown: str, run_id: str, known: Log | None, run: RunLogs, at: str
) -> Log:
    role = cells.get("role", "").lower()
    if role not in _ROLES:
        guess = known.role if known else "bee"
        if role:
            run.notes.append(f"{at}: role '{role}' is not one of {', '.join(_ROLES)}; assumed to be {guess}.")
        role = guess
    size: int | None = None
    raw = cells.get("target_batch_size", "")
    try:
        size = int(float(raw)) if raw else None
    except (ValueError, OverflowError):
        run.notes.append(f"{at}: target_batch_size '{raw}' is not a number.")
    host = cells.get("host") or (known.host if known else path.name.partition(".")[0])
    gpu, model = cells.get("gpu", ""), cells.get("model", "")
    if gpu and accelerator(gpu) is None:
        run.notes.append(f"{at}: gpu '{gpu}' is unknown, and so is its price.")
    return Log(
        path=path,
        shown=shown,
        run_id=run_id,
        role=role,
        host=host,
        place=cells.get("location") or host,
        gpu=accelerator(gpu) or gpu or accelerator(host),
        model=(model_name(model) or model) if model else (known.model if known else None),
        label=cells.get("label") or None,
        target_batch_size=size if size and size > 0 else None,
    )
