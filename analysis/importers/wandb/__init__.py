"""Imports logs like the paper's: CSV exports of Weights & Biases runs, one file per VM and one of the monitor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from analysis.importers.base import Imported, ImportFailed
from analysis.importers.wandb.files import discover, looks_like_logs
from analysis.importers.wandb.run import RunUnusable, import_run
from cloud.prices.book import PriceBook, load
from metrics.store.database import StoreError

__all__ = ["WandbLogs"]

_PAPER_BOOK = "study-2023-04"


class WandbLogs:
    """Importer of a folder of W&B CSV exports (plain or .gz), with or without an index."""

    name = "W&B logs"

    def recognises(self, folder: Path) -> bool:
        """Whether the folder or a subfolder has an index or a file named like `hivemind-81-gc-t4-1.csv.gz`."""
        return looks_like_logs(folder)

    def import_runs(
        self,
        folder: Path,
        into: Path,
        *,
        index: Path | None = None,
        only: Sequence[str] = (),
        book: PriceBook | None = None,
    ) -> Imported:
        """See `Importer`. The default price book is the paper's, of April 2023."""
        runs, problems = discover(folder, index, only)
        prices = book or load(_PAPER_BOOK)
        folders: list[Path] = []
        for run in runs:
            target = into / re.sub(r"[^\w.-]", "_", run.run_id).lstrip(".")
            if (target / "run.db").exists():
                problems.append(f"{run.run_id}: {target} already contains a run, which is not overwritten.")
                continue
            try:
                import_run(run, target, prices)
            except (RunUnusable, StoreError) as error:
                problems.append(str(error))
            else:
                folders.append(target)
        if not folders:
            why = (
                " ".join(problems)
                or "it contains no logs (files like hivemind-81-gc-t4-1.csv.gz, or an index)."
            )
            raise ImportFailed(f"{folder}: no run can be imported: {why}")
        return Imported(tuple(folders), tuple(problems))
