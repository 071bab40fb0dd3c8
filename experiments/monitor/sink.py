"""What the monitor writes: monitor.jsonl (append only, whole lines) and status.json."""

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
    """monitor.jsonl. A line cut off by a crash is closed, so that the next one starts on its own."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be opened."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        with path.open("rb") as file:
            if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
                os.write(self._fd, b"\n")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line a row, all in one write. Raises OSError (disk full)."""
        data = b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def line_of(row: EpochReport | Evaluation) -> dict[str, Any]:
    """The line for an accepted record, as docs/design.md's contract says."""
    if isinstance(row, Evaluation):
        return {"kind": "evaluation", **asdict(row)}
    return {
        "kind": "epoch",
        "epoch": asdict(row.epoch),
        "egress": [asdict(g) for g in row.egress],
        "ingress": asdict(row.ingress),
    }


def read_back(path: Path) -> Iterator[EpochReport | Evaluation]:
    """The accepted records in an earlier process's monitor.jsonl; lines cut off are passed over."""
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


def rejected_before(path: Path) -> dict[str, int]:
    """The running totals by reason that an earlier process had reached."""
    totals: dict[str, int] = {}
    if path.exists():
        with path.open() as file:
            for text in file:
                if text.startswith('{"kind":"rejected"') and text.endswith("\n"):
                    line: Any = json.loads(text)
                    totals[line["reason"]] = line["count"]
    return totals


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace status.json in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(status))
    temporary.replace(path)
