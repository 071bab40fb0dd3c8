"""Sums of the input trace by epoch and operation: in input_sums.jsonl and, the newest ones, in status.json.

A thread of its own adds up what the others recorded whenever an epoch has ended, so that a VM that ends without notice loses
the sums of its last epoch only, and recording stays as it is.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from experiments.pipeline.trace_sums import InputRow, TraceSums, row_key
from experiments.wire.input_sums import FILE, IN_STATUS, to_json
from metrics.records import EpochRecord

_log = logging.getLogger("experiments.peer")
_CLOSE_S = 2.0  # for the last sums


class InputSums:
    """A thread that reads a trace at the ends of epochs, writes its sums and publishes the newest ones."""

    def __init__(
        self,
        trace: Path,
        folder: Path,
        vm: str,
        publish: Callable[[list[list[Any]]], None],
        warn: Callable[[str, str], None],
    ) -> None:
        """`trace`: folder of the trace files. `folder`: gets input_sums.jsonl. `publish`: receives the newest entries."""
        self._sums, self._path = TraceSums(trace, vm), folder / FILE
        self._publish, self._warn = publish, warn
        self._newest: dict[tuple[type, int, str], list[Any]] = {}
        self._ended: SimpleQueue[EpochRecord | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="input sums", daemon=True)

    def start(self) -> None:
        """Begin to wait for the ends of epochs."""
        self._thread.start()

    def epoch_ended(self, epoch: EpochRecord) -> None:
        """Add up what was recorded until now, in the thread."""
        self._ended.put(epoch)

    def close(self) -> None:
        """Add up the rest, after the last event was recorded, and end the thread."""
        self._ended.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.warning("the sums of the trace were not finished in %g s", _CLOSE_S)

    def _run(self) -> None:
        epoch: EpochRecord | None = None
        while (epoch := self._ended.get()) is not None:
            self._report(lambda ended=epoch: self._sums.update([ended]))
        self._report(self._sums.finish)

    def _report(self, add_up: Callable[[], list[InputRow]]) -> None:
        try:
            rows = add_up()
        except OSError as error:
            self._warn("input sums", f"the trace cannot be read, and its sums may be incomplete: {error}")
            return
        if not rows:
            return
        for row in rows:
            key = row_key(row)
            self._newest.pop(key, None)
            self._newest[key] = to_json(row)
        for key in list(self._newest)[:-IN_STATUS]:
            del self._newest[key]
        self._publish(list(self._newest.values()))
        try:
            with self._path.open("a") as file:
                file.writelines(json.dumps(to_json(row)) + "\n" for row in rows)
        except OSError as error:  # a full disk: status.json may still work
            self._warn("input sums", f"{FILE} cannot be written: {error}")
