"""Opens the runs that a command reads: run folders, exported runs and logs of other programs."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from analysis.importers.base import Importer, ImportFailed
from cloud.prices.book import PriceBook
from metrics.store.database import RunStore, StoreError


@dataclass(frozen=True, slots=True)
class Source:
    """A readable run. `folder` holds its `run.db` and is valid only inside the `opened` block."""

    run_id: str
    label: str | None
    folder: Path
    imported: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """The runs in the requested order, and a sentence for each input that could not be used."""

    runs: tuple[Source, ...]
    problems: tuple[str, ...]


def importers() -> tuple[Importer, ...]:
    """All importers, in the order in which they are tried."""
    from analysis.importers.orch_export import OrchExport
    from analysis.importers.wandb import WandbLogs

    return (OrchExport(), WandbLogs())


@contextmanager
def opened(
    targets: Sequence[Path],
    *,
    index: Path | None = None,
    only: Sequence[str] = (),
    book: PriceBook | None = None,
) -> Generator[Opened, None, None]:
    """Open runs for reading.

    A target is a run's folder (with `run.db`), a folder of run folders, or a folder that an importer
    recognises. Imported runs are kept in a temporary folder until the block ends. `index`, `only` and `book`
    are passed to the importer. Raises ImportFailed if no run can be used.
    """
    runs: list[Source] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="orch-import-") as scratch:
        for n, target in enumerate(targets):
            try:
                folders, more = _folders(target, Path(scratch) / str(n), index, only, book)
            except ImportFailed as error:
                problems.append(str(error))
                continue
            problems += more
            for folder in folders:
                try:
                    runs.append(_source(folder))
                except StoreError as error:
                    problems.append(str(error))
        if not runs:
            raise ImportFailed(" ".join(problems) or "no run was given; name a run or a folder of logs.")
        yield Opened(tuple(runs), tuple(problems))


def _folders(
    target: Path, into: Path, index: Path | None, only: Sequence[str], book: PriceBook | None
) -> tuple[Sequence[Path], Sequence[str]]:
    if (target / "run.db").is_file():
        return [target], []
    if not target.is_dir():
        raise ImportFailed(f"{target}: no such folder; name a run's folder or a folder of logs.")
    inner = sorted(path.parent for path in target.glob("*/run.db"))
    if inner:
        return [folder for folder in inner if not only or folder.name in only], []
    chosen = next((one for one in importers() if one.recognises(target)), None)
    if chosen is None and index is not None:
        chosen = importers()[-1]  # only W&B logs have an index, which may list files of any name
    if chosen is None:
        raise ImportFailed(
            f"{target}: contains no run: no run.db, no orch export and no logs "
            "(files like hivemind-81-gc-t4-1.csv.gz, or an INDEX.csv)."
        )
    found = chosen.import_runs(target, into, index=index, only=only, book=book)
    return found.folders, found.problems


def _source(folder: Path) -> Source:
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    return Source(str(meta.run_id or folder.name), meta.label, folder, meta.imported is not None)
