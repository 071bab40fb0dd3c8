"""A run with its frames, numbers and report, and the list of runs."""

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

STUDY_BOOK = "study-2023-04"  # prices at the time of the paper's logs

_RUNNING = "running"


class _Keep(Protocol):
    """Owner of a run's temporary folder; `check` raises OrchError once the folder is removed."""

    def check(self) -> None: ...


class Run:
    """A run's records and the figures derived from them; create one with `orch.open`.

    Every method raises OrchError if the records cannot be read. Times, bytes and dollars are at full scale, as
    in the report; columns named raw_... are as measured. A finished run is read once, a running one with
    every call.
    """

    def __init__(self, folder: Path, keep: _Keep | None = None) -> None:
        """Private: use `orch.open`. The run keeps `keep`, the owner of a temporary folder, alive."""
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
        """The run's metadata: experiment, scales, price book, model, ... (docs/design.md)."""
        with self._reading() as store:
            return store.all_meta()

    @property
    def warnings(self) -> list[str]:
        """Caveats of the numbers, as sentences; a note that the run was emulated comes first."""
        from metrics.warnings import sentences as warned

        return warned(self.numbers())

    def numbers(self) -> RunNumbers:
        """The numbers behind all frames (`metrics.run`), with dollars as Decimal."""
        if self._known is None or self._known.meta.status == _RUNNING:
            from metrics.run import RunNumbers

            with self._reading() as store:
                self._known = RunNumbers.of(store)
        return self._known

    def summary(self) -> dict[str, Any]:
        """The numbers of the whole run, as printed by `orch report RUN -o json`; None is unknown."""
        from metrics.summary import summarise

        return summarise(self.numbers())

    def slots(self) -> list[str]:
        """Sorted names of the slots that had a VM."""
        with self._reading() as store:
            return sorted(set(store.columns("vms")["slot"]))

    def epochs(self, by: str = "swarm") -> pd.DataFrame:
        """One row per Hivemind epoch; with `by="peer"`, one per peer and epoch."""
        from metrics.tables import per_epoch
        from orch.frames import frame, peer_epoch_rows

        if by not in ("swarm", "peer"):
            raise OrchError(f"epochs(by={by!r}): `by` must be 'swarm' or 'peer'")
        if by == "peer":
            return frame("peer_epochs", peer_epoch_rows(self.numbers()))
        return frame("epochs", per_epoch(self.numbers()))

    def peers(self) -> pd.DataFrame:
        """One row per VM: its machine, work, traffic and cost."""
        from orch.frames import frame, peer_rows

        return frame("peers", peer_rows(self.numbers()))

    def traffic(self) -> pd.DataFrame:
        """One row per directed pair of slots: bytes and their cost."""
        from orch.frames import frame, traffic_rows

        return frame("traffic", traffic_rows(self.numbers()))

    def evaluations(self) -> pd.DataFrame:
        """One row per evaluated epoch and figure on held-out data; empty if nothing was evaluated."""
        from orch.frames import evaluation_rows, frame

        return frame("evaluations", evaluation_rows(self.numbers()))

    def coverage(self) -> pd.DataFrame:
        """One row per pass over the training data: how many samples were used once, more often or not; empty if unknown."""
        from metrics.tables import coverage
        from orch.frames import frame

        return frame("coverage", coverage(self.numbers()))

    def preemptions(self) -> pd.DataFrame:
        """One row per preempted VM: the loss in seconds, samples and dollars."""
        from orch.frames import frame, preemption_rows

        return frame("preemptions", preemption_rows(self.numbers()))

    def costs(self, prices: str | None = None) -> pd.DataFrame:
        """One row per line of the bill. Sum with `skipna=False`: one unknown line makes the sum unknown.

        `prices`: price book (a name or a CSV file) to use instead of the run's own.
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
        """The cost as measured, on the paper's basis, and the difference.

        Like a run in `orch cost -o json`, with dollars as Decimal.
        """
        from analysis.costs import cost_row
        from cloud.prices.book import load

        with self._reading() as store:
            return cost_row(store, load(STUDY_BOOK), load(prices) if prices else None)

    def events(self) -> pd.DataFrame:
        """One row per event of the control plane, oldest first; empty for imported logs."""
        return self._table("events")

    def steps(self) -> pd.DataFrame:
        """One row per training step, as measured, not at full scale."""
        return self._table("steps")

    def utilisation(self) -> pd.DataFrame:
        """One row per VM and about ten seconds: how busy it was, as measured; empty for imported logs."""
        from metrics.tables import utilisation
        from orch.frames import frame

        return frame("utilisation", utilisation(self.numbers()))

    def input(self) -> pd.DataFrame:
        """One row per VM, epoch and operation of the input: sums of the trace, as measured. Needs `data.trace`.

        Grows as epochs end.
        """
        from metrics.tables import input_sums
        from orch.frames import frame

        if not self.numbers().input_traces:
            raise OrchError(f"{self.run_id} has no input sums: {self._trace_advice('batches or ops')}")
        return frame("input", input_sums(self.numbers()))

    def batches(self) -> pd.DataFrame:
        """One row per batch of the merged trace, as measured. Needs `data.trace` and the files in the run's folder."""
        return self._of_trace("batches")

    def ops(self) -> pd.DataFrame:
        """One row per operation and sample of the merged trace, as measured. Needs `data.trace: ops` and the files."""
        found = self._of_trace("ops")
        if found.empty:
            raise OrchError(f"{self.run_id} has no traced operations: {self._trace_advice('ops')}")
        return found

    def report(self) -> Path:
        """Build the run's report in its folder and return the path of `report.html`."""
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

    def _of_trace(self, table: str) -> pd.DataFrame:
        from analysis.pipeline.merge import read_whole_files
        from analysis.pipeline.tables import tables
        from orch.frames import frame_of_columns

        with self._sentences():
            trace = read_whole_files(self.folder / "vms")
        if trace is None:
            if self.numbers().input_traces:
                raise OrchError(
                    f"{self.run_id} has no trace files in {self.folder / 'vms'}: those of rented VMs end with the VMs; "
                    "input() has their sums"
                )
            raise OrchError(
                f"{self.run_id} has no trace files in {self.folder / 'vms'}: {self._trace_advice('batches or ops')}"
            )
        return frame_of_columns(table, tables(trace)[table].to_pydict())

    def _trace_advice(self, value: str) -> str:
        if self.numbers().meta.status == _RUNNING:
            return "it has not ended; read it again then"
        return f"set data.trace: {value} in the experiment and run it again (docs/trace.md)"

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
    """Open a run by its id, a unique prefix of it, `latest`, or the path of its folder.

    `home`: where the runs are kept; by default ORCH_HOME, else the platform's state folder. Raises OrchError.
    """
    from orchestrator.home import resolve_run, run_folder

    if isinstance(run, Path) or (Path(run) / "run.db").is_file():
        return Run(Path(run).absolute())
    place = _home(home)
    with sentences():
        return Run(run_folder(place, resolve_run(place, run)))


def runs(home: str | Path | None = None) -> pd.DataFrame:
    """List the runs of the state folder, newest first; `error` says why a run cannot be read."""
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
