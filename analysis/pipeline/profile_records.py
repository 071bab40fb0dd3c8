"""What a profile measured: strategies of running a pipeline (Isenko et al., SIGMOD 2022), and what each of them took.

A strategy runs a pipeline's first operations once and stores the result ("offline"), and the others whenever a sample is
read ("online").
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.pipeline.host_load import HostLoad
from metrics.stats import Estimate


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the pipeline is run. `cache` is where a peer keeps what it has read: nowhere, the stored bytes on its disk, or
    the decoded items in its memory."""

    split: int  # operations that run once; 0: none
    codec: str = "none"  # of stored values
    streams: int = 1
    workers: int = 1
    worker_kind: str = "thread"  # or process
    cache: str = "none"  # or disk, memory

    @property
    def label(self) -> str:
        """A name for tables that is unique within a profile, such as "2-zlib-s4-w2t-disk"."""
        workers = f"w{self.workers}{self.worker_kind[0]}"
        return f"{self.split}-{self.codec}-s{self.streams}-{workers}-{self.cache}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one strategy took on this machine. None: does not apply to it, or was not measured.

    Rates are samples per wall-clock second, `n` of an estimate is its number of timed windows. "a sample" is a mean.
    """

    strategy: Strategy
    after: str  # the last operation that runs once; "" for none
    samples: int  # that were read from the source
    stored_bytes: float  # a sample, in its shard, with the tar's headers
    wire_bytes: float  # a sample, that came from the store in the first pass
    later_wire_bytes: float  # a sample, in each later pass: 0 if everything is cached
    cached_bytes: float  # a sample, that the cache takes on disk or in memory
    offline_s: float | None  # a sample, wall-clock, to run and encode the first operations with one process
    offline_cpu_s: float | None  # a sample, CPU time of the same
    save_s: float | None  # a sample, to store the result
    read_sps: Estimate  # PRESTO's T1: reading the source shards, no operations
    write_sps: Estimate | None  # T2: storing the result
    stored_read_sps: Estimate | None  # T3: reading the stored shards, no operations
    delivered_sps: Estimate  # T4: batches that a consumer which does nothing else gets
    cpu_s: Estimate  # a sample, CPU time of this machine's process (store excluded) while delivering
    shards: int | None = None  # that were read per pass; None: an older profile
    host: HostLoad | None = None  # the whole machine while delivering
    bad_samples: int = (
        0  # of `samples`, left out with data.bad_samples: skip; figures of a sample are of the good ones
    )


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """What the measured samples say of the whole data set, and how good that was on a second, disjoint sample."""

    total_samples: int
    stored_bytes: Estimate  # of the whole data set
    offline_s: Estimate | None
    second_samples: int
    second_error_percent: float | None  # of stored bytes a sample: second sample compared with the first


@dataclass(frozen=True, slots=True)
class Profile:
    """All strategies of one pipeline over one data set on one machine. `seconds` is the time that profiling took."""

    target: str  # experiment or pipeline
    pipeline: str
    fingerprint: str  # of the whole pipeline
    ops: tuple[str, ...]
    storable: int  # operations that may be stored
    machine: str
    cores: int
    memory_bytes: int
    link_mbps: float | None  # of one stream; None: the store was read without a limit
    link_rtt_ms: float | None
    generated: bool  # the samples were made on this machine
    measured_at: str  # ISO 8601, UTC
    seconds: float
    measurements: tuple[Measurement, ...]
    extrapolations: tuple[tuple[str, Extrapolation], ...] = ()  # by the strategy's label
