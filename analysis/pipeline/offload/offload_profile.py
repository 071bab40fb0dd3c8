"""What `orch pipeline profile --offload` measured: the rates of stage 1, and each sample of stage 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.pipeline.offload.choices import Codec
from analysis.pipeline.offload.io_bound import IoBound, io_bound
from analysis.pipeline.offload.sample_profile import Floats, SampleProfile
from metrics.stats import Estimate


@dataclass(frozen=True, slots=True)
class Stage1:
    """Rates in samples per second over `batches` batches, each measured without the other two.

    `fetch_sps`: reading the store, no operations. `preprocess_sps`: samples that are in memory, with `workers` workers.
    `trainer_sps`: batches of the experiment's size that are in memory; None: unknown.
    """

    batches: int
    batch_size: int
    streams: int
    workers: int
    worker_kind: str  # thread or process
    fetch_sps: Estimate
    preprocess_sps: Estimate
    trainer_sps: Estimate | None
    trainer_given: bool = False  # by an option, not measured

    @property
    def io_bound(self) -> IoBound:
        """Whether fetching is slowest beyond the intervals."""
        return io_bound(self.fetch_sps, self.preprocess_sps, self.trainer_sps)


@dataclass(frozen=True, slots=True)
class CodecPlace:
    """A codec of the values after the first `ops` operations. `not_held`: samples that it cannot hold; they are sent
    without it."""

    codec: str
    ops: int
    not_held: int = 0

    @property
    def name(self) -> str:
        """Unique within a profile, such as "webp:2"."""
        return f"{self.codec}:{self.ops}"


@dataclass(frozen=True, slots=True)
class Head:
    """All of a profile but its samples. Samples were transformed as in pass `pass_number` of a run with `seed`."""

    target: str  # experiment or pipeline
    pipeline: str
    fingerprint: str  # of the whole pipeline
    ops: tuple[str, ...]
    codecs: tuple[CodecPlace, ...]
    storable: int  # first operations before the first random one, whose values can be kept
    samples: int  # good ones, each with a row
    bad_samples: int  # left out with data.bad_samples: skip
    seed: int
    pass_number: int
    machine: str
    cores: int
    link_mbps: float | None  # of one stream; None: the store was read without a limit
    link_rtt_ms: float | None
    generated: bool  # the samples were made on this machine
    measured_at: str  # ISO 8601, UTC
    seconds: float  # that profiling took
    stage_1: Stage1


@dataclass(frozen=True)
class MeasuredCodec:
    """What a codec took, by sample: encoded bytes, and CPU seconds to encode and to decode; each (n,)."""

    place: CodecPlace
    size_bytes: Floats
    write_s: Floats
    read_s: Floats


@dataclass(frozen=True)
class OffloadProfile:
    """A two-stage profile. Raises ValueError if the parts do not fit, and for codec values that are negative or not finite."""

    head: Head
    samples: SampleProfile
    codecs: tuple[MeasuredCodec, ...] = ()

    def __post_init__(self) -> None:
        n, ops = len(self.samples.keys), self.samples.ops
        if n != self.head.samples or ops != self.head.ops or self.samples.op_s is None:
            raise ValueError(f"it has {n} samples of {', '.join(ops)}, which its head does not describe")
        if tuple(one.place for one in self.codecs) != self.head.codecs:
            raise ValueError("its codecs are others than those of its head")
        for one in self.codecs:
            for values in (one.size_bytes, one.write_s, one.read_s):
                if values.shape != (n,) or not np.all(np.isfinite(values) & (values >= 0)):
                    raise ValueError(f"{one.place.name} has a value that is negative or not finite")

    @property
    def mean_raw_bytes(self) -> float:
        """Of a sample, as it is stored."""
        return float(np.mean(self.samples.raw_bytes))

    @property
    def mean_cpu_s(self) -> float:
        """Of all operations on a sample."""
        assert self.samples.op_s is not None  # checked when it was made
        return float(np.mean(np.sum(self.samples.op_s, axis=1)))

    @property
    def payload_bps(self) -> float:
        """Bits per second that stage 1 fetched, of the members that are transformed."""
        return 8 * self.mean_raw_bytes * self.head.stage_1.fetch_sps.value

    def choosable(self) -> tuple[Codec, ...]:
        """The measured codecs, as `best` takes them."""
        found: list[Codec] = []
        for one in self.codecs:
            plain = self.samples.size_bytes[:, one.place.ops - 1]
            ratio = np.divide(one.size_bytes, plain, out=np.ones_like(plain), where=plain > 0)
            found.append(Codec(one.place.name, one.place.ops, ratio, one.write_s, one.read_s))
        return tuple(found)


def speed_by_op(client: SampleProfile, server: SampleProfile) -> dict[str, float]:
    """The server's CPU seconds / the client's, of each operation, over the samples that both have.

    An operation that took the client no time gets 1. Raises ValueError without times, for other operations, without a
    common sample, and for an operation that took the server no time and the client some.
    """
    if client.op_s is None or server.op_s is None:
        raise ValueError("a profile has no times")
    if client.ops != server.ops:
        raise ValueError(f"the operations are {', '.join(server.ops)}, not {', '.join(client.ops)}")
    at = {key: number for number, key in enumerate(server.keys)}
    both = [(number, at[key]) for number, key in enumerate(client.keys) if key in at]
    if not both:
        raise ValueError("the profiles have no sample in common")
    mine, theirs = (np.array(rows) for rows in zip(*both, strict=True))
    client_s, server_s = client.op_s[mine].sum(axis=0), server.op_s[theirs].sum(axis=0)
    found: dict[str, float] = {}
    for op, ours_s, its_s in zip(client.ops, client_s, server_s, strict=True):
        if ours_s > 0 and its_s <= 0:
            raise ValueError(f"operation {op} took no time on the server")
        found[op] = float(its_s / ours_s) if ours_s > 0 else 1.0
    return found
