"""The records of a merged trace. Times are nanoseconds on one clock for all VMs; what was not recorded is None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operation on one sample, in thread `tid` of process `pid` on `vm`.

    `cpu_ns` is CPU time of that thread. `bytes_out` is the size of the whole sample after the operation.
    """

    vm: str
    pid: int
    tid: int
    op: str
    sample: int | None
    batch: int | None
    start_ns: int
    wall_ns: int
    cpu_ns: int | None
    bytes_out: int | None

    @property
    def end_ns(self) -> int:
        """When the operation ended."""
        return self.start_ns + self.wall_ns


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch, from the fetch of its first sample to the end of its consumption.

    Batches of a VM are numbered in the order in which they were asked for. The worker (`pid`, `tid`) fetches the samples
    and collates them; the consumer then waits for the batch and uses it. Fetching includes the operations.
    """

    vm: str
    batch: int
    pid: int | None = None
    tid: int | None = None
    samples: int | None = None
    fetch_start_ns: int | None = None
    fetch_ns: int | None = None
    collate_start_ns: int | None = None
    collate_ns: int | None = None
    collate_cpu_ns: int | None = None
    arrived_ns: int | None = None  # when the consumer's process received it
    consumer_pid: int | None = None
    consumer_tid: int | None = None
    wait_start_ns: int | None = None  # when the consumer asked for it
    wait_ns: int | None = None
    consumed_ns: int | None = None  # from the end of the wait until the consumer asks for another batch

    @property
    def ready_ns(self) -> int | None:
        """When the worker had preprocessed the batch: the end of the collation, or of the fetch without one."""
        if self.collate_start_ns is not None and self.collate_ns is not None:
            return self.collate_start_ns + self.collate_ns
        if self.fetch_start_ns is not None and self.fetch_ns is not None:
            return self.fetch_start_ns + self.fetch_ns
        return None

    @property
    def preprocess_ns(self) -> int | None:
        """From the start of the fetch until the batch is ready."""
        if self.ready_ns is None or self.fetch_start_ns is None:
            return None
        return self.ready_ns - self.fetch_start_ns

    @property
    def consumed_start_ns(self) -> int | None:
        """When the consumer got the batch: the end of its wait."""
        if self.wait_start_ns is None or self.wait_ns is None:
            return None
        return self.wait_start_ns + self.wait_ns

    @property
    def delay_ns(self) -> int | None:
        """How long the batch lay ready before its consumption started."""
        if self.ready_ns is None or self.consumed_start_ns is None:
            return None
        return self.consumed_start_ns - self.ready_ns


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase of the training, such as "forward", in the thread that ran it."""

    vm: str
    pid: int
    tid: int
    name: str
    start_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread that recorded. `dropped` counts events that its full buffer did not hold."""

    vm: str
    pid: int
    tid: int
    name: str
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """A merged trace. Operations and phases are sorted by start, batches by VM and number."""

    ops: tuple[OpRecord, ...] = ()
    batches: tuple[BatchRecord, ...] = ()
    phases: tuple[PhaseRecord, ...] = ()
    threads: tuple[Thread, ...] = ()

    @property
    def dropped(self) -> int:
        """Events that full buffers did not hold; above 0 the statistics are those of the recorded part."""
        return sum(thread.dropped for thread in self.threads)

    @property
    def workers(self) -> int:
        """Threads that preprocessed batches; without persistent workers, each epoch has others."""
        return len({(b.vm, b.pid, b.tid) for b in self.batches if b.pid is not None})
