"""The FOCUS export of a run as a folder: `focus.csv`, FOCUS's own `metadata.json`, and the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.export.focus import focus_csv, focus_metadata, focus_rows
from analysis.export.tables import EXPORT_FORMAT, EXPORT_VERSION, MANIFEST, ExportError, new_folder, snapshot
from metrics.readable import few
from metrics.run import RunNumbers
from metrics.store.schema import SCHEMA_VERSION


def export_focus(run_db: Path, out: Path, force: bool = False, known_only: bool = False) -> Mapping[str, Any]:
    """Write the run's costs to the folder `out` and return the manifest, whose `left_out` lists unknown costs.

    FOCUS does not support unknown costs. Raises ExportError if there is one, unless `known_only`, and
    metrics.store.database.StoreError.
    """
    with snapshot(run_db) as store:
        numbers = RunNumbers.of(store)
    made = focus_rows(numbers)
    left_out = [f"{line.what}: {line.price}" for line in made.left_out]
    if left_out and not known_only:
        shown = few(list(dict.fromkeys(left_out)))
        raise ExportError(
            f"{numbers.meta.run_id}: the cost of {len(left_out)} of {len(numbers.bill.lines)} lines of the bill is "
            f"unknown, and FOCUS requires a cost ({shown}); --known-only leaves them out"
        )
    with new_folder(out, force) as folder:
        files = {
            "focus.csv": focus_csv(made.rows),
            "metadata.json": json.dumps(focus_metadata(f"orch {version('orch')}"), indent=1) + "\n",
        }
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
        manifest = {
            "format": EXPORT_FORMAT,
            "version": EXPORT_VERSION,
            "schema_version": SCHEMA_VERSION,
            "orch_version": version("orch"),
            "run_id": numbers.meta.run_id,
            "form": "focus",
            "rows": len(made.rows),
            "files": [
                {"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
                for name, text in files.items()
            ],
            "left_out": left_out,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest
