"""Conversion of a scaled run to full scale. This is the only place that does it (docs/design.md, last section).

With samples_scale m, time_scale c, bytes_scale s, and an epoch whose peers took S samples in total for a target of T
(raw):
- The part of the calculation before the target was reached, share = min(1, T / S), grows with m. The overshoot does
  not: `calc x f x c` with f = share x m + (1 - share). The samples grow with the same f, so T becomes m T.
- Communication and everything else outside calculation is `x c` only.
- Bytes to another peer: the payload of the model that its program counted (gradients, state) is `x s`, each packet with
  its header. The rest is control traffic, which keeps its rate over the full-scale seconds of the calculation. The rate
  is the lower one of the phases settling and calc. Bytes above it are sent once per epoch: those of matchmaking, at
  the end of the phase calc, where the leader queries the DHT as fast as it answers (half a MB per epoch), and those of
  the synchronising step itself, during which progress reports pause.
- Older runs did not count the payload. What the synchronising step sent above the control rate of the calculation is
  `x s`; this subtracts too much. Nothing is averaged with the store and the monitor, so all bytes to them are control
  traffic. Bytes to a peer that joins in this epoch are mostly the state it downloads, in any phase: all are `x s`.
- A VM's seconds: raw seconds outside epochs `x c`, plus its epochs at full scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from metrics.epochs.throughput import SwarmEpoch

# Bytes of a full IP packet over its payload on the emulated cloud's links: MTU 1500, of which 20 are IP and 32 TCP with
# timestamps. Acknowledgements are not included: their number depends on the receiver's card, and is small on real ones.
PACKET_PER_LOAD = 1500 / 1448


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors by which a run was scaled down; 1: not scaled. Raises ValueError for a scale that is not positive."""

    bytes: float = 1.0
    time: float = 1.0
    samples: float = 1.0

    def __post_init__(self) -> None:
        for name in ("bytes", "time", "samples"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} scale {getattr(self, name)} is not positive")

    @classmethod
    def of(cls, values: Mapping[str, float] | None) -> Scales:
        """Read meta's `scales`. None and missing keys mean 1."""
        known = values or {}
        return cls(*(float(known.get(name, 1.0)) for name in ("bytes", "time", "samples")))

    @property
    def none(self) -> bool:
        """Whether nothing was scaled."""
        return self.bytes == self.time == self.samples == 1


def calculation_factor(samples: float, raw_target: int | None, samples_scale: float) -> float:
    """Return f of the module docstring, the factor of an epoch's calculation and samples.

    Without a target the whole epoch grows with `samples_scale`.
    """
    share = min(1.0, raw_target / samples) if raw_target and samples > 0 else 1.0
    return share * samples_scale + (1.0 - share)


def full_scale_epoch(epoch: SwarmEpoch, scales: Scales, raw_target: int | None) -> SwarmEpoch:
    """Convert one epoch to full scale. `ended_s` and `crossed_s` stay on the run's own clock.

    The wall time grows by as much as the calculation: the mean over the peers that were present from the start of the
    epoch (over all, if none was).
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
            overlapped_s=p.overlapped_s * c,  # not x f: how much more would overlap is unknown
        )
        for p in epoch.peers
    )
    whole = [p for p in epoch.peers if p.vm not in epoch.joined] or list(epoch.peers)
    grown = math.fsum(p.calc_s * (factor - 1.0) for p in whole) / len(whole) if whole else 0.0
    duration = None if epoch.duration_s is None else (epoch.duration_s + grown) * c
    watched = None if epoch.watched_samples is None else epoch.watched_samples * factor
    return replace(epoch, peers=peers, duration_s=duration, watched_samples=watched)


def full_scale_epochs(
    epochs: Iterable[SwarmEpoch], scales: Scales, raw_target: int | None
) -> list[SwarmEpoch]:
    """Convert epochs to full scale."""
    return [full_scale_epoch(e, scales, raw_target) for e in epochs]


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """Raw bytes that one VM sent to one address in one epoch, and the seconds of the phases.

    `settling`: calculating while others still fetch parts of the last round.
    """

    calc_bytes: float
    calc_s: float
    settling_bytes: float
    settling_s: float
    comm_bytes: float
    model_bytes: float  # payload in all phases, counted by the program: gradients and state, without headers

    @property
    def bytes(self) -> float:
        """Bytes of all phases."""
        return self.calc_bytes + self.settling_bytes + self.comm_bytes


def counted_bytes(sent: PhaseBytes, full_scale_calc_s: float, scales: Scales) -> float:
    """Convert bytes to full scale if the program counted the payload of the model.

    `full_scale_calc_s`: the epoch's calculation at full scale. The payload may exceed the bytes that the kernel sent,
    because some of it leaves in the next epoch.
    """
    model = sent.model_bytes * PACKET_PER_LOAD
    control = max(0.0, sent.bytes - model)
    phases = (sent.calc_bytes, sent.calc_s), (sent.settling_bytes, sent.settling_s)
    rate = min((count / seconds for count, seconds in phases if seconds > 0), default=0.0)
    seconds = sent.calc_s + sent.settling_s
    rate = (
        min(rate, control / seconds) if seconds > 0 else 0.0
    )  # the phases may include a download of the state
    once = control - rate * seconds
    return model * scales.bytes + rate / scales.time * full_scale_calc_s + once


def full_scale_bytes(
    calc_bytes: float,
    calc_s: float,
    comm_bytes: float,
    comm_s: float,
    epoch_s: float,
    scales: Scales,
    averages: bool,
    arriving: bool = False,
) -> float:
    """Convert the bytes of one epoch from a VM to one destination to full scale, for runs without a payload count.

    `calc_s`, `comm_s`: raw wall seconds of the phases. `epoch_s`: the epoch at full scale. `averages`: whether the
    destination is a peer. `arriving`: whether it is joining a running swarm. A synchronising step that sent less than
    the control rate has no averaging bytes; the negative difference is kept unscaled, so that scales of 1 change nothing.
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
    raw: Iterable[SwarmEpoch], full_scale: Iterable[SwarmEpoch]
) -> dict[str, list[tuple[float, float]]]:
    """Return by VM the (raw, full-scale) seconds of its epochs, in the order of the epochs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for before, after in zip(raw, full_scale, strict=True):
        for p, q in zip(before.peers, after.peers, strict=True):
            found.setdefault(p.vm, []).append((p.wall_s, q.wall_s))
    return found


def full_scale_seconds(raw_s: float, epochs: Iterable[tuple[float, float]], scales: Scales) -> float:
    """Convert a VM's billed seconds to full scale. `epochs`: (raw, full-scale) seconds of its epochs."""
    pairs = list(epochs)
    outside = raw_s - math.fsum(raw for raw, _ in pairs)
    return outside * scales.time + math.fsum(full_scale for _, full_scale in pairs)


def open_epoch_seconds(open_s: float, last: tuple[float, float]) -> tuple[float, float]:
    """Return the (raw, full-scale) seconds of an unfinished epoch, `open_s` after the end of the previous one.

    It is scaled like the VM's last epoch, `last` (raw, full-scale), and is at most as long.
    """
    raw_s, study_s = last
    if raw_s <= 0:
        return 0.0, 0.0
    part_s = min(max(0.0, open_s), raw_s)
    return part_s, part_s * study_s / raw_s


def full_scale_ingress_bytes(
    network_bytes: float, samples: float, bytes_per_sample: float | None, scales: Scales
) -> float | None:
    """Return the bytes read from the store at full scale. None: unknown.

    An unscaled run has the measured bytes. A scaled run streams a substitute for the modelled dataset, so its bytes are
    the full-scale samples x the modelled dataset's bytes per sample.
    """
    if scales.none:
        return network_bytes
    return None if bytes_per_sample is None else samples * bytes_per_sample
