"""Output files of the monitor: monitor.jsonl (append-only, whole lines) and status.json."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.wire.dht_records import EpochReport, Evaluation
from metrics.records import EgressRecord, EpochRecord, IngressRecord


class Sink:
    """Writer of monitor.jsonl."""

    def __init__(self, path: Path) -> None:
        """Open the file and terminate a last line that a crash cut off. Raises OSError."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        with path.open("rb") as file:
            if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
                os.write(self._fd, b"\n")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line per row, all in one write. Raises OSError (disk full)."""
        data = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def line_of(row: EpochReport | Evaluation) -> dict[str, Any]:
    """Return the line of an accepted record, in the format of docs/design.md."""
    if isinstance(row, Evaluation):
        line = {"kind": "evaluation", **asdict(row)}
        if not row.metrics:
            del line["metrics"]
        return line
    return {
        "kind": "epoch",
        "epoch": asdict(row.epoch),
        "egress": [asdict(g) for g in row.egress],
        "ingress": asdict(row.ingress),
    }


def read_accepted(path: Path) -> Iterator[EpochReport | Evaluation]:
    """Yield the accepted records in the monitor.jsonl of an earlier process. Incomplete lines are skipped."""
    if not path.exists():
        return
    with path.open() as file:
        for text in file:
            try:
                line: Any = json.loads(text)
            except ValueError:
                continue
            if line.get("kind") == "epoch":
                yield EpochReport(
                    EpochRecord(**line["epoch"]),
                    tuple(EgressRecord(**row) for row in line["egress"]),
                    IngressRecord(**line["ingress"]),
                )
            elif line.get("kind") == "evaluation":
                yield Evaluation(**{k: v for k, v in line.items() if k != "kind"})


def read_rejected(path: Path) -> dict[str, int]:
    """Return the number of rejected records by reason in the monitor.jsonl of an earlier process."""
    totals: dict[str, int] = {}
    if path.exists():
        with path.open() as file:
            for text in file:
                if text.startswith('{"kind":"rejected"') and text.endswith("\n"):
                    line: Any = json.loads(text)
                    totals[line["reason"]] = line["count"]
    return totals


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace status.json atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(status))
    temporary.replace(path)
