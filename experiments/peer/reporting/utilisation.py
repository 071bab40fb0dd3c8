"""How busy this VM is: CPU, memory, network and GPUs, read once a second and summarised every 10 seconds.

A summary is a `metrics.records.UtilisationRecord`. All of them are lines of utilisation.csv, which the controller collects
with the step log; the newest are in status.json, so that those of a VM that is lost have been stored by then. What
cannot be read is None, never 0.
"""

from __future__ import annotations

import csv
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from experiments.peer.processes import descendants
from experiments.peer.reporting.gpus import GpuReading, open_gpus
from metrics.records import UtilisationRecord

_log = logging.getLogger(__name__)
PERIOD_S = 1.0
READINGS = 10  # per summary
PUBLISHED = 6  # summaries in status.json: the last minute, which outlasts some lost lists of the provider
_MEMORY_EACH = 6  # of so many summaries has the memory of processes: the kernel needs some 30 ms to add it up
_T = TypeVar("_T")
Warn = Callable[[str, str], None]  # (key, text), as `Status.warn`
Scope = Literal["vm", "peer"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters since some start, and levels, at one moment. None: not read, or not readable."""

    at_s: float  # monotonic
    cpu_s: float | None = None  # CPU time used
    sent_bytes: int | None = None
    received_bytes: int | None = None
    memory_bytes: int | None = None
    gpus: GpuReading | None = None


class Source(Protocol):
    """Where readings come from."""

    scope: Scope
    cores: int
    memory_total_bytes: int | None

    def read(self, begin: bool) -> Reading:
        """Read everything. `begin`: this reading begins a summary, so look for new processes and interfaces first."""
        ...


def summarise(
    vm: str, source: Source, began_s: float, readings: Sequence[Reading]
) -> UtilisationRecord | None:
    """Summarise readings. The first one is the last of the summary before. None if there are fewer than two."""
    if len(readings) < 2:
        return None
    cpu = _rates((r.at_s, r.cpu_s) for r in readings)
    sent = _rates((r.at_s, r.sent_bytes) for r in readings)
    received = _rates((r.at_s, r.received_bytes) for r in readings)
    gpus = [r.gpus for r in readings[1:] if r.gpus is not None]
    memory = [r.memory_bytes for r in readings if r.memory_bytes is not None]
    return UtilisationRecord(
        vm=vm,
        began_s=round(began_s, 3),
        wall_s=round(readings[-1].at_s - readings[0].at_s, 3),
        readings=len(readings) - 1,
        scope=source.scope,
        cores=source.cores,
        # The kernel counts in ticks of 10 ms, so a second may seem to have 1.01 s of CPU time.
        cpu_mean=None if cpu is None else round(min(1.0, cpu.total / cpu.seconds / source.cores), 4),
        cpu_peak=None if cpu is None else round(min(1.0, cpu.peak_per_s / source.cores), 4),
        memory_bytes=max(memory, default=None),
        memory_total_bytes=source.memory_total_bytes,
        sent_bytes=None if sent is None else int(sent.total),
        sent_peak_bytes_per_s=None if sent is None else round(sent.peak_per_s, 1),
        received_bytes=None if received is None else int(received.total),
        received_peak_bytes_per_s=None if received is None else round(received.peak_per_s, 1),
        gpus=gpus[-1].count if gpus else None,
        gpu_mean=round(sum(g.share for g in gpus) / len(gpus), 4) if gpus else None,
        gpu_peak=round(max(g.share for g in gpus), 4) if gpus else None,
        gpu_memory_bytes=max((g.memory_bytes for g in gpus), default=None),
        gpu_memory_total_bytes=gpus[-1].memory_total_bytes if gpus else None,
    )


@dataclass(frozen=True, slots=True)
class _Rate:
    total: float
    seconds: float
    peak_per_s: float


def _rates(points: Iterable[tuple[float, float | None]]) -> _Rate | None:
    """Increase of a counter between its readings. A counter that fell was reset: that interval is left out."""
    steps = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in pairwise(points)
        if before[1] is not None and after[1] is not None and after[1] >= before[1] and after[0] > before[0]
    ]
    if not steps:
        return None
    seconds, total = (sum(column) for column in zip(*steps, strict=True))
    return _Rate(total, seconds, max(count / s for s, count in steps))


def default_interface(routes: str) -> str | None:
    """Return the interface of the IPv4 default route with the lowest metric, from /proc/net/route. None: no such route."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    found = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
    return min(found)[1] if found else None


def interface_bytes(table: str, name: str) -> tuple[int, int] | None:
    """Return the bytes sent and received by an interface, from /proc/net/dev. None: no such interface."""
    for line in table.splitlines():
        found, _, counters = line.partition(":")
        if found.strip() == name:
            values = counters.split()
            return int(values[8]), int(values[0])
    return None


def busy_ticks(stat: str) -> int:
    """Return the clock ticks in which the machine's cores did not idle, from /proc/stat. Stolen time counts as idle."""
    user, nice, system, _idle, _wait, interrupt, soft = map(int, stat.split(maxsplit=8)[1:8])
    return user + nice + system + interrupt + soft


def process_ticks(stat: str) -> int:
    """Return the clock ticks that a process's threads used, from /proc/<pid>/stat."""
    after_name = stat.rpartition(")")[2].split()  # a name may have spaces and parentheses
    return int(after_name[11]) + int(after_name[12])


class ProcReader:
    """Reads /proc and NVML.

    A value that raises OSError or ValueError is None, and is reported once.
    """

    def __init__(
        self, warn: Warn, *, own_machine: bool, own_network: bool, proc: Path = Path("/proc")
    ) -> None:
        """`own_machine`: this VM is a machine; otherwise only this process and its descendants are counted, and GPUs are
        unknown. `own_network`: no other VM uses its interface.
        """
        self.scope: Scope = "vm" if own_machine else "peer"
        self.cores = os.cpu_count() or 1
        self._warn, self._proc, self._own_network = warn, proc, own_network
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._gpus = open_gpus(warn) if own_machine else None
        self._interface: str | None = None
        self._pids: list[int] = []
        self._ticks: dict[int, int] = {}  # by process
        self._used_ticks = 0
        self._begun = 0
        self._cpu = self._machine_cpu_s if own_machine else self._processes_cpu_s
        self.memory_total_bytes = self._try("memory", lambda: self._memory("MemTotal"))

    def read(self, begin: bool) -> Reading:
        """Read everything. The memory of processes is read once in `_MEMORY_EACH` summaries."""
        at_s = time.monotonic()
        if begin and self.scope == "peer":
            root = int(os.readlink(self._proc / "self"))  # /proc may belong to another PID namespace
            self._pids = [root, *descendants(root)]
            self._ticks = {pid: self._ticks[pid] for pid in self._pids if pid in self._ticks}
        if begin:
            self._interface = self._try("network", self._find_interface) if self._own_network else None
        sent, received = self._try("network", self._network) or (None, None)
        return Reading(
            at_s=at_s,
            cpu_s=self._try("CPU", self._cpu),
            sent_bytes=sent,
            received_bytes=received,
            memory_bytes=self._try("memory", lambda: self._memory_used(begin)),
            gpus=self._try("GPU", self._gpus.read) if self._gpus is not None else None,
        )

    def _try(self, what: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except (OSError, ValueError, IndexError) as error:
            self._warn(f"utilisation {what}", f"the {what} utilisation is unknown: {error}")
            return None

    def _text(self, name: str) -> str:
        return (self._proc / name).read_text()

    def _find_interface(self) -> str | None:
        return default_interface(self._text("net/route"))

    def _network(self) -> tuple[int, int] | None:
        return None if self._interface is None else interface_bytes(self._text("net/dev"), self._interface)

    def _machine_cpu_s(self) -> float:
        return busy_ticks(self._text("stat")) * self._tick_s

    def _processes_cpu_s(self) -> float:
        """CPU time of this process and its descendants since each was first seen."""
        for pid in self._pids:
            try:
                ticks = process_ticks(self._text(f"{pid}/stat"))
            except (FileNotFoundError, ProcessLookupError):  # it ended
                continue
            self._used_ticks += max(0, ticks - self._ticks.get(pid, ticks))
            self._ticks[pid] = ticks
        return self._used_ticks * self._tick_s

    def _memory_used(self, begin: bool) -> int | None:
        if self.scope == "vm":
            return self._memory("MemTotal") - self._memory("MemAvailable")
        self._begun += begin
        due = begin and self._begun % _MEMORY_EACH == 1
        return sum(map(self._share_of_memory, self._pids)) if due else None

    def _share_of_memory(self, pid: int) -> int:
        """A process's memory; what several processes share is divided among them (PSS)."""
        try:
            return _kilobytes(self._text(f"{pid}/smaps_rollup"), "Pss")
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def _memory(self, key: str) -> int:
        return _kilobytes(self._text("meminfo"), key)


def _kilobytes(text: str, key: str) -> int:
    """A value of /proc/meminfo or smaps_rollup, in bytes."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise ValueError(f"no {key}")


class Utilisation:
    """A thread that reads a source once a second, writes the summaries and publishes the newest ones."""

    def __init__(
        self,
        vm: str,
        path: Path,
        source: Source,
        publish: Callable[[list[dict[str, Any]]], None],
        warn: Warn,
        unix_s: Callable[[], float],
        period_s: float = PERIOD_S,
    ) -> None:
        """`publish`: receives the last `PUBLISHED` summaries as JSON, without `vm`. `period_s`: other than 1 in tests."""
        self._vm, self._path, self._source, self._warn = vm, path, source, warn
        self._publish, self._unix_s, self._period_s = publish, unix_s, period_s
        self._newest: list[dict[str, Any]] = []
        self._stop = threading.Event()
        self._readings = 0
        self._spent_s = 0.0
        self._thread = threading.Thread(target=self._run, name="utilisation", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    @property
    def cost(self) -> float:
        """CPU seconds that this thread has used per second: its share of one core."""
        return self._spent_s / max(self._readings * self._period_s, self._period_s)

    def close(self) -> None:
        """Write the summary that has begun, and end the thread."""
        self._stop.set()
        self._thread.join(5.0)
        _log.info("utilisation was read %d times, at %.3f %% of a core", self._readings, 100 * self.cost)

    def _run(self) -> None:
        try:
            with self._path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([field.name for field in fields(UtilisationRecord)])
                file.flush()
                self._read_until_closed(lambda row: (writer.writerow(astuple(row)), file.flush()))
        except OSError as error:  # a full disk: status.json may still work, so go on without the file
            self._warn("utilisation", f"utilisation.csv cannot be written: {error}")
            self._read_until_closed(lambda row: None)

    def _read_until_closed(self, write: Callable[[UtilisationRecord], object]) -> None:
        began_s, readings = self._unix_s(), [self._source.read(begin=True)]
        due_s = time.monotonic()
        closing = False
        while not closing:
            now_s = time.monotonic()
            due_s = due_s + self._period_s if due_s + self._period_s > now_s else now_s + self._period_s
            closing = self._stop.wait(due_s - now_s)
            last = len(readings) == READINGS
            if (
                not closing or due_s - time.monotonic() < self._period_s / 2
            ):  # a peak of milliseconds says nothing
                readings.append(self._source.read(begin=last))
                self._readings += 1
            if last or closing:
                row = summarise(self._vm, self._source, began_s, readings)
                if row is not None:
                    write(row)
                    entry = asdict(row)
                    del entry["vm"]
                    self._newest = [*self._newest[1 - PUBLISHED :], entry]
                    self._publish(self._newest)
                began_s, readings = self._unix_s(), readings[-1:]
            self._spent_s = time.thread_time()


def watch_utilisation(
    vm: str,
    folder: Path,
    *,
    own_machine: bool,
    own_network: bool,
    publish: Callable[[list[dict[str, Any]]], None],
    warn: Warn,
    unix_s: Callable[[], float],
) -> Callable[[], None]:
    """Begin to write `folder`/utilisation.csv, and return the function that ends it. Does nothing without Linux's /proc.

    Parameters as in `ProcReader` and `Utilisation`.
    """
    if not Path("/proc/stat").is_file():
        return lambda: None
    source = ProcReader(warn, own_machine=own_machine, own_network=own_network)
    watch = Utilisation(vm, folder / "utilisation.csv", source, publish, warn, unix_s)
    watch.start()
    return watch.close
