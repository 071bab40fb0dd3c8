"""steps.csv: one line per training step, written at the end of each epoch."""

from __future__ import annotations

import csv
from dataclasses import astuple, fields
from pathlib import Path

from metrics.records import StepRecord


class StepLog:
    """Appends StepRecords to a CSV file with their field names as header. Raises OSError (disk full)."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="", buffering=1 << 16)
        self._writer = csv.writer(self._file)
        self._writer.writerow([field.name for field in fields(StepRecord)])
        self._file.flush()

    def write(self, step: StepRecord) -> None:
        """Buffer one step; it is written with the next `flush`."""
        self._writer.writerow([f"{v:.6f}" if isinstance(v, float) else v for v in astuple(step)])

    def flush(self) -> None:
        """Write the buffered steps."""
        self._file.flush()

    def close(self) -> None:
        """Write the buffered steps and close the file."""
        self._file.close()
