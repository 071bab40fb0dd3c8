"""Reads the host's CPU, disk, network and context switches once a second while a profile is measured."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

from analysis.pipeline.host_load import HostLoad, HostReading, HostSample, load, sample
from experiments.peer.reporting.utilisation import PERIOD_S, busy_ticks, default_interface, interface_bytes

_T = TypeVar("_T")


class HostReader:
    """Reads /proc. What it does not say is None."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self.cores = os.cpu_count() or 1

    def read(self) -> HostReading:
        """Read all counters."""
        received_and_sent = _known(self._network)
        received, sent = received_and_sent or (None, None)
        return HostReading(
            at_s=time.monotonic(),
            cpu_s=_known(lambda: busy_ticks(self._text("stat")) * self._tick_s),
            disk_read_bytes=_known(lambda: _value(self._text("vmstat"), "pgpgin") * 1024),
            disk_write_bytes=_known(lambda: _value(self._text("vmstat"), "pgpgout") * 1024),
            net_received_bytes=received,
            net_sent_bytes=sent,
            context_switches=_known(lambda: _value(self._text("stat"), "ctxt")),
        )

    def _text(self, name: str) -> str:
        return (self._proc / name).read_text()

    def _network(self) -> tuple[int, int] | None:
        """Bytes received and sent by the interface of the default route."""
        interface = default_interface(self._text("net/route"))
        found = None if interface is None else interface_bytes(self._text("net/dev"), interface)
        return None if found is None else (found[1], found[0])


class HostWatch:
    """A thread that reads the host once a second, and when a strategy begins and ends.

    `samples` is complete after the block, `loads` has the means of each strategy.
    """

    def __init__(self, reader: HostReader | None = None, period_s: float = PERIOD_S) -> None:
        """`period_s`: other than 1 in tests."""
        self._reader, self._period_s = reader or HostReader(), period_s
        self.samples: list[HostSample] = []
        self.loads: dict[str, HostLoad] = {}
        self._strategy = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._first = self._last = self._reader.read()

    def __enter__(self) -> Self:
        self._first = self._last = self._reader.read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._take()

    @contextmanager
    def of(self, strategy: str) -> Iterator[None]:
        """Count what the host does in the block as the strategy's."""
        began = self._take(strategy)
        try:
            yield
        finally:
            self.loads[strategy] = load(began, self._take(""), self._reader.cores)

    def _take(self, then: str | None = None) -> HostReading:
        """Take a sample. `then`: the strategy from now on; None: the same."""
        with self._lock:
            now = self._reader.read()
            self.samples.append(
                sample(self._last, now, self._first.at_s, strategy=self._strategy, cores=self._reader.cores)
            )
            self._last = now
            if then is not None:
                self._strategy = then
            return now

    def _run(self) -> None:
        due_s = time.monotonic() + self._period_s
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            self._take()
            due_s = max(due_s + self._period_s, time.monotonic())


def _known(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except (OSError, ValueError, IndexError):
        return None


def _value(table: str, name: str) -> int:
    """A number of /proc/stat or /proc/vmstat. Raises ValueError if there is none of this name."""
    for line in table.splitlines():
        first, _, rest = line.partition(" ")
        if first == name:
            return int(rest.split()[0])
    raise ValueError(f"no {name}")
