"""One run, read: its frames, its numbers, its report. And the list of runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orch.errors import OrchError, sentences

if TYPE_CHECKING:
    import pandas as pd

    from metrics.run import RunNumbers
    from metrics.store.database import RunStore

STUDY_BOOK = "study-2023-04"  # the prices of when the study's logs were written

_RUNNING = "running"


class _Keep(Protocol):
    """What a run's folder lives as long as; `check` raises OrchError once it is gone."""

    def check(self) -> None: ...


class Run:
    """A run's records and what follows from them; make one with `orch.open`.

    Every method raises OrchError when the records cannot be read (any more). Times, bytes and dollars are at
    the study's scale, as in the report; columns called raw_... have them as measured. A run that has ended is
    read once; one that goes on is read again by every call.
    """

    def __init__(self, folder: Path, keep: _Keep | None = None) -> None:
        """Private: use `orch.open`. The run keeps `keep` (a study's temporary folder) alive."""
        self.folder = folder
        self._keep = keep
        self._known: RunNumbers | None = None
        with self._reading() as store:
            meta = store.run_meta()
        self.run_id = str(meta.run_id or folder.name)
        self.label = _text(meta.label)
        self.emulated = bool(meta.emulated)

    @property
    def meta(self) -> dict[str, Any]:
        """All that is kept beside the records: experiment, scales, price book, model, ... (docs/design.md)."""
        with self._reading() as store:
            return store.all_meta()

    @property
    def warnings(self) -> list[str]:
        """What a reader must know beside the numbers, as sentences; that it was emulated comes first."""
        from metrics.warnings import sentences as warned

        return warned(self.numbers())

    def numbers(self) -> RunNumbers:
        """What all frames are made of (`metrics.run`), with dollars as Decimal."""
        if self._known is None or self._known.meta.status == _RUNNING:
            from metrics.run import RunNumbers

            with self._reading() as store:
                self._known = RunNumbers.of(store)
        return self._known

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run, as `orch report RUN -o json` prints them; None is unknown."""
        from metrics.summary import summarise

        return summarise(self.numbers())

    def slots(self) -> list[str]:
        """The slots that had a VM, sorted."""
        with self._reading() as store:
            return sorted(set(store.columns("vms")["slot"]))

    def epochs(self, by: str = "swarm") -> pd.DataFrame:
        """One row a hivemind epoch; with `by="peer"` one a peer and epoch."""
        from metrics.tables import per_epoch
        from orch.frames import frame, peer_epoch_rows

        if by not in ("swarm", "peer"):
            raise OrchError(
                f"epochs(by={by!r}): an epoch is the swarm's or a peer's; write 'swarm' or 'peer'"
            )
        if by == "peer":
            return frame("peer_epochs", peer_epoch_rows(self.numbers()))
        return frame("epochs", per_epoch(self.numbers()))

    def peers(self) -> pd.DataFrame:
        """One row a VM: what was rented, what it did, what it sent, read and cost."""
        from orch.frames import frame, peer_rows

        return frame("peers", peer_rows(self.numbers()))

    def traffic(self) -> pd.DataFrame:
        """One row a directed pair of slots: bytes and their dollars."""
        from orch.frames import frame, traffic_rows

        return frame("traffic", traffic_rows(self.numbers()))

    def preemptions(self) -> pd.DataFrame:
        """One row a VM that was preempted: what it cost in seconds, samples and dollars."""
        from orch.frames import frame, preemption_rows

        return frame("preemptions", preemption_rows(self.numbers()))

    def costs(self, prices: str | None = None) -> pd.DataFrame:
        """One row a line of the bill. Sum it with `skipna=False`: one unknown line makes the sum unknown.

        `prices`: bill all again by this book (its name or a CSV file) instead of the run's own.
        """
        from orch.frames import cost_rows, frame

        if prices is None:
            return frame("costs", cost_rows(self.numbers()))
        from cloud.prices.book import load
        from metrics.run import RunNumbers
        from metrics.run_cost import Repriced

        with self._reading() as store:
            return frame("costs", cost_rows(RunNumbers.of(Repriced(store, load(prices)))))

    def cost_summary(self, prices: str | None = None) -> dict[str, Any]:
        """Dollars on our basis and on the published study's, and what they differ by: a run of
        `orch cost -o json`, with dollars as Decimal."""
        from analysis.costs import cost_row
        from cloud.prices.book import load

        with self._reading() as store:
            return cost_row(store, load(STUDY_BOOK), load(prices) if prices else None)

    def events(self) -> pd.DataFrame:
        """One row a fact of the control plane, the oldest first; none for imported logs."""
        return self._table("events")

    def steps(self) -> pd.DataFrame:
        """One row a training step, as measured (not multiplied back)."""
        return self._table("steps")

    def report(self) -> Path:
        """Build the run's report in its folder; returns the path of `report.html`."""
        from analysis.report.build import build

        with self._sentences():
            return build(self.folder)

    def __repr__(self) -> str:
        return f"<orch.Run {self.run_id}{f' ({self.label})' if self.label else ''}>"

    def _repr_html_(self) -> str:
        from orch.html import run_html

        return run_html(self.summary())

    def _table(self, name: str) -> pd.DataFrame:
        from orch.frames import frame_of_columns

        with self._reading() as store:
            return frame_of_columns(name, store.columns(name))

    @contextmanager
    def _reading(self) -> Generator[RunStore, None, None]:
        from metrics.store.database import RunStore

        with self._sentences(), RunStore.open_reader(self.folder / "run.db") as store:
            yield store

    @contextmanager
    def _sentences(self) -> Generator[None, None, None]:
        if self._keep is not None:
            self._keep.check()
        with sentences():
            yield


def open(run: str | Path = "latest", home: str | Path | None = None) -> Run:
    """A run by its id, the beginning of it, `latest`, or the path of its folder.

    `home`: where the runs are kept; otherwise ORCH_HOME, else the platform's state folder. Raises OrchError.
    """
    from orchestrator.home import resolve_run, run_folder

    if isinstance(run, Path) or (Path(run) / "run.db").is_file():
        return Run(Path(run).absolute())
    place = _home(home)
    with sentences():
        return Run(run_folder(place, resolve_run(place, run)))


def runs(home: str | Path | None = None) -> pd.DataFrame:
    """The runs of the state folder, the newest first; one that cannot be read says why in `error`."""
    from orch.frames import frame
    from orchestrator.home import list_runs, run_folder

    place = _home(home)
    with sentences():
        folders = [run_folder(place, run_id) for run_id in list_runs(place)]
    return frame("runs", [_row(folder) for folder in folders])


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("experiment", "started_at", "ended_at", "target", "emulated", "scales", "host_contended", "peers")
    )
    row |= {"model": None, "target_batch_size": None, "run_id": folder.name, "folder": str(folder)}
    try:
        run = Run(folder)
        meta = run.meta
        slots = run.slots()
    except OrchError as error:
        return row | {"status": "unreadable", "error": str(error)}
    experiment = meta.get("experiment")
    return row | {
        "experiment": _text(experiment.get("name") if isinstance(experiment, dict) else experiment),
        "status": meta.get("status"),
        "started_at": _time(meta.get("started_s")),
        "ended_at": _time(meta.get("ended_s")),
        "target": meta.get("target"),
        "emulated": meta.get("emulated"),
        "scales": meta.get("scales"),
        "host_contended": (meta.get("host") or {}).get("contended"),
        "peers": len(slots),
        "model": (meta.get("model") or {}).get("name"),
        "target_batch_size": meta.get("target_batch_size"),
        "error": meta.get("error"),
    }


def _time(unix_s: float | None) -> Any:
    import pandas as pd

    return pd.NaT if unix_s is None else pd.Timestamp(unix_s, unit="s", tz="UTC")


def _home(home: str | Path | None) -> Path:
    from orchestrator.home import home_folder

    return home_folder() if home is None else Path(home).expanduser().absolute()


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)
