"""The one place where a scaled run is multiplied back to the study's scale (docs/design.md, last section).

With samples_scale m, time_scale c, bytes_scale s, and an epoch whose peers took S samples in all where the
target was T (raw):
- the part of the calculation before the target was crossed, min(1, T / S), grows with m; the overshoot does
  not: `calc x f x c` with f = share x m + (1 - share). The samples grow with the same f, so T becomes m T;
- communication and everything else outside calculation is `x c` only;
- bytes to another peer: what its program handed over of the model (gradients, state) is `x s`, each packet
  with its header; the rest is control traffic, which keeps its rate over the calculation's study-scale
  seconds: the lower of its rates in the two halves of the calculation. What is beyond it is sent once: looking for a
  group, at the end of the second half, where the leader asks the DHT as fast as it answers (half a MB an epoch), and
  the step itself, in which reports pause;
- where nobody counted what was handed over (older runs): what the synchronising step sent beyond the control
  traffic is `x s`, at the calculation's control rate, which takes away too much. To the store and the monitor
  nothing is averaged, so all bytes are control traffic. To a peer that is arriving in this epoch most of it is
  the state it downloads, in any phase: all of it is `x s`;
- a VM's seconds: raw seconds outside epochs, `x c`, plus its epochs at study scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from metrics.epochs.throughput import SwarmEpoch

# IP packets of a full load on the emulated cloud's links: MTU 1500, of it 20 bytes of IP, 32 of TCP with timestamps.
# Acknowledgements are not in it: how many there are depends on the receiver's card, and on real ones they are few.
PACKET_PER_LOAD = 1500 / 1448


@dataclass(frozen=True, slots=True)
class Scales:
    """By how much a run was shrunk; 1: not at all. Raises ValueError for a scale that is not positive."""

    bytes: float = 1.0
    time: float = 1.0
    samples: float = 1.0

    def __post_init__(self) -> None:
        for name in ("bytes", "time", "samples"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} scale {getattr(self, name)} is not positive")

    @classmethod
    def of(cls, values: Mapping[str, float] | None) -> Scales:
        """From meta's `scales`; None or missing keys: 1."""
        known = values or {}
        return cls(*(float(known.get(name, 1.0)) for name in ("bytes", "time", "samples")))

    @property
    def none(self) -> bool:
        """Whether nothing was scaled."""
        return self.bytes == self.time == self.samples == 1


def calculation_factor(samples: float, raw_target: int | None, samples_scale: float) -> float:
    """f above: by what an epoch's calculation and samples grow. Without a target the whole epoch grows."""
    share = min(1.0, raw_target / samples) if raw_target and samples > 0 else 1.0
    return share * samples_scale + (1.0 - share)


def study_epoch(epoch: SwarmEpoch, scales: Scales, raw_target: int | None) -> SwarmEpoch:
    """One epoch at study scale; `ended_s` and `crossed_s` stay on the run's own clock.

    The wall time grows by what the calculation grew: the mean over the peers that were there from the
    epoch's beginning (over all, when none was).
    """
    factor = calculation_factor(epoch.samples, raw_target, scales.samples)
    c = scales.time
    peers = tuple(
        replace(
            p,
            calc_s=p.calc_s * factor * c,
            comm_s=p.comm_s * c,
            samples=p.samples * factor,
            load_s=p.load_s * factor * c,
            timed_s=p.timed_s * factor * c,
            overlapped_s=p.overlapped_s * c,  # its factor is 1: what more calculation hides, nobody knows
        )
        for p in epoch.peers
    )
    whole = [p for p in epoch.peers if p.vm not in epoch.joined] or list(epoch.peers)
    grown = math.fsum(p.calc_s * (factor - 1.0) for p in whole) / len(whole) if whole else 0.0
    duration = None if epoch.duration_s is None else (epoch.duration_s + grown) * c
    watched = None if epoch.watched_samples is None else epoch.watched_samples * factor
    return replace(epoch, peers=peers, duration_s=duration, watched_samples=watched)


def study_epochs(epochs: Iterable[SwarmEpoch], scales: Scales, raw_target: int | None) -> list[SwarmEpoch]:
    """All epochs at study scale."""
    return [study_epoch(e, scales, raw_target) for e in epochs]


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """What one VM sent to one address in one epoch, and how long that took; raw.

    `settling`: calculating while others still fetch the last round's parts.
    """

    calc_bytes: float
    calc_s: float
    settling_bytes: float
    settling_s: float
    comm_bytes: float
    model_bytes: float  # of all of it, handed over by the program: gradients and state, without headers

    @property
    def bytes(self) -> float:
        """All of it."""
        return self.calc_bytes + self.settling_bytes + self.comm_bytes


def counted_bytes(sent: PhaseBytes, study_calc_s: float, scales: Scales) -> float:
    """Bytes at study scale where the program counted what it handed over of the model.

    `study_calc_s`: the epoch's calculation at study scale. A program that says more than the kernel sent is
    believed: some of it left in the next epoch.
    """
    model = sent.model_bytes * PACKET_PER_LOAD
    control = max(0.0, sent.bytes - model)
    phases = (sent.calc_bytes, sent.calc_s), (sent.settling_bytes, sent.settling_s)
    rate = min((count / seconds for count, seconds in phases if seconds > 0), default=0.0)
    seconds = sent.calc_s + sent.settling_s
    rate = min(rate, control / seconds) if seconds > 0 else 0.0  # a state may have been sent in them too
    once = control - rate * seconds
    return model * scales.bytes + rate / scales.time * study_calc_s + once


def study_bytes(
    calc_bytes: float,
    calc_s: float,
    comm_bytes: float,
    comm_s: float,
    epoch_s: float,
    scales: Scales,
    averages: bool,
    arriving: bool = False,
) -> float:
    """Bytes of one epoch from a VM to one destination at study scale.

    `calc_s`, `comm_s`: raw wall seconds of the phases; `epoch_s`: the epoch at study scale; `averages`:
    whether the destination is a peer, `arriving`: whether it joins a swarm that trains already. A
    synchronising step that sent less than the control rate gives no averaging bytes; what is missing is kept
    as it is, so that scales of 1 change nothing.
    """
    if averages and arriving:
        return (calc_bytes + comm_bytes) * scales.bytes
    rate = calc_bytes / (calc_s * scales.time) if calc_s > 0 else 0.0
    outside_rate = calc_bytes if calc_s <= 0 else 0.0
    averaged = comm_bytes - rate * comm_s * scales.time
    if averages and averaged > 0:
        averaged *= scales.bytes
    return averaged + rate * epoch_s + outside_rate


def vm_epoch_seconds(
    raw: Iterable[SwarmEpoch], study: Iterable[SwarmEpoch]
) -> dict[str, list[tuple[float, float]]]:
    """Per VM, its epochs' (raw, study-scale) seconds, in the order of the epochs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for before, after in zip(raw, study, strict=True):
        for p, q in zip(before.peers, after.peers, strict=True):
            found.setdefault(p.vm, []).append((p.wall_s, q.wall_s))
    return found


def study_seconds(raw_s: float, epochs: Iterable[tuple[float, float]], scales: Scales) -> float:
    """A VM's billed seconds at study scale, from its raw seconds and its epochs' (raw, study) seconds."""
    pairs = list(epochs)
    outside = raw_s - math.fsum(raw for raw, _ in pairs)
    return outside * scales.time + math.fsum(study for _, study in pairs)


def open_epoch_seconds(open_s: float, last: tuple[float, float]) -> tuple[float, float]:
    """(raw, study) seconds of an epoch that has not ended, or never will: `open_s` since the one before.

    It is taken to grow as the VM's last one (raw, study) did, and for as long as that one took.
    """
    raw_s, study_s = last
    if raw_s <= 0:
        return 0.0, 0.0
    part_s = min(max(0.0, open_s), raw_s)
    return part_s, part_s * study_s / raw_s


def study_ingress_bytes(
    network_bytes: float, samples: float, bytes_per_sample: float | None, scales: Scales
) -> float | None:
    """Bytes read from the store at study scale; None: unknown.

    An unscaled run's are the measured ones. A scaled run streams a stand-in for the modelled dataset, so
    its are study-scale samples x the modelled dataset's bytes per sample.
    """
    if scales.none:
        return network_bytes
    return None if bytes_per_sample is None else samples * bytes_per_sample
