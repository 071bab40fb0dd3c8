"""The runs behind a comparison: their numbers from run.db, the published ones by name, the study's own logs replayed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from analysis.compare import ComparedRun
from analysis.replay import RunRow, row_of_folder, run_row
from analysis.sources import opened
from analysis.study.paper import run_name
from experiments.spec.catalog import Published, published
from metrics.interval import Estimate
from metrics.run_numbers import RunNumbers
from metrics.store import RunStore
from metrics.throughput import dropped_rounds

__all__ = ["compared_run", "figures_of", "published_figures", "replayed_figures"]


def compared_run(
    folder: Path, replayed: Mapping[str, Mapping[str, float | None]], label: str = "", attempts: int = 1
) -> ComparedRun:
    """One run of a folder with `run.db`, beside what was published and replayed of its experiment.

    `replayed`: figures by the published run's name (`replayed_figures`). `label` tells runs of one experiment apart.
    Raises metrics.store.StoreError.
    """
    with RunStore.open_reader(folder / "run.db") as store:
        run, row = RunNumbers.of(store), run_row(store)
    experiment = run.meta["experiment"]
    own = str(experiment.get("name") if isinstance(experiment, Mapping) else experiment or row.label)
    known = published(own)
    name = run_name(known) if known else own
    host = run.meta["host"] or {}
    contended = host.get("contended")
    return ComparedRun(
        experiment=f"{name} {label}".strip(),
        run_id=row.run_id,
        published=published_figures(known),
        emulated=figures_of(row),
        replayed=replayed.get(name),
        host_contended=None if contended is None else bool(contended),
        dropped_rounds=len(dropped_rounds(run.raw)),
        attempts=attempts,
        epoch_sps=known.epoch_sps if known else (),
    )


def published_figures(known: Published | None) -> dict[str, float | None]:
    """The study's figures under our names, bytes as such; granularity and rates by wall clock."""
    if known is None:
        return {}
    gigabytes = known.egress_gb_per_vm_epoch
    return {
        "sps": known.sps,
        "calc_s": known.calc_s,
        "comm_s": known.comm_s,
        "epoch_s": known.epoch_s,
        "granularity": known.granularity_wall,
        "egress_bytes_per_vm_epoch": None if gigabytes is None else gigabytes * 1e9,
    }


def figures_of(row: RunRow) -> dict[str, float | None]:
    """A run's figures on the published basis: throughput is the mean of the epochs' rates, of a GPU alone its
    wall-clock rate."""
    rate = row.sps_epoch_mean or row.sps or row.sps_wall
    estimates = {
        "sps": rate,
        "calc_s": row.calc_s,
        "comm_s": row.comm_s,
        "epoch_s": row.epoch_s,
        "granularity": row.granularity,
    }
    return {
        **{name: _value(estimate) for name, estimate in estimates.items()},
        "egress_bytes_per_vm_epoch": row.egress_bytes_per_vm_epoch,
    }


def replayed_figures(logs: Path) -> tuple[dict[str, dict[str, float | None]], tuple[str, ...]]:
    """The figures of the runs in a folder of logs by their label ("NLP B-8"), and what could not be read.

    Raises analysis.importers.base.ImportFailed when there is none.
    """
    with opened([logs]) as found:
        rows = [row_of_folder(source.folder) for source in found.runs]
        return {row.label: figures_of(row) for row in rows if row.label}, found.problems


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
