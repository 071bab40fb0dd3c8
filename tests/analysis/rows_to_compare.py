"""Rows of a comparison and run folders for the tests of `analysis.compare.published`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_up_run import write_run

from analysis.compare.published import ComparedRun
from analysis.compare.published_runs import published_figures
from experiments.catalog import published
from experiments.parse.load import load, to_document
from metrics.store.database import RunStore


def a_run(name: str = "NLP C-8", **changes: object) -> ComparedRun:
    """A run that equals the published one."""
    family, number = name.split()
    known = published(f"geo-{number.lower().replace('-', '')}{'-nlp' if family == 'NLP' else ''}")
    assert known is not None
    figures = published_figures(known)
    row = ComparedRun(name, f"run {name}", figures, figures, None, False, 0, 1, known.epoch_sps)
    return replace(row, **changes)


def ran(folder: Path, *overrides: str, name: str = "geo-c8") -> Path:
    """A run's folder whose experiment is the library's, changed."""
    write_run(folder)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("experiment", to_document(load(name, overrides, shipped=True)))
    return folder
