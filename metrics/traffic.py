"""Traffic between nodes: egress records with their addresses resolved to nodes and locations.

A node is a VM's name, "store" or "monitor". Between VMs, the classes of the traffic matrix are those of the price
book (same_zone ... internet). Three more are "store" (requests and acknowledgements to the object store),
"checkpoint" (stored checkpoints, part of the bytes to the object store) and "control" (to the monitor). An unknown
address is a node of its own, with the class "unknown".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloud.prices.classes import INTERNET, egress_class, is_internal, network_of
from metrics.epochs.scaling import PhaseBytes, Scales, counted_bytes, full_scale_bytes
from metrics.epochs.throughput import SwarmEpoch
from metrics.records import EgressRecord, VmEnd, VmRecord, fell_out_of_sync

STORE = "store"
CHECKPOINT = "checkpoint"  # class of bytes, not a node
MONITOR = "monitor"
PRIVATE = "private"  # internal addresses in rented VMs' networks that belong to no VM of the run

CLASS_WORDS = {
    "same_zone": "inside a zone",
    "same_zone_public": "inside a zone, by public addresses",
    "inter_zone": "between zones of a region",
    "inter_region": "between regions of a continent",
    "inter_continent": "between continents",
    "oceania": "to or from Oceania",
    "between_clouds": "between clouds",
    "internet": "to the internet",
    "store": "to the object store",
    "checkpoint": "to the object store, checkpoints",
    "control": "to the monitor",
    "unknown": "to an unknown place",
}
"""The classes of the traffic matrix in words, after "egress"."""

_AVERAGING = ("settling", "comm")  # the phases in which parts of a round travel


@dataclass(frozen=True, slots=True)
class Flow:
    """One egress record with its destination resolved; bytes are raw."""

    src: str
    dst: str
    src_location: str | None
    dst_location: str | None
    kind: str  # class of the traffic matrix
    epoch: int
    phase: str
    seconds: float
    bytes: int
    model_bytes: int | None = None  # payload of the model sent, without headers; None: not counted


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one class sent from one node to another over a whole run."""

    src: str
    dst: str
    src_location: str | None
    dst_location: str | None
    kind: str
    bytes: float


def flows(
    records: Iterable[EgressRecord],
    addresses: Mapping[str, str],
    locations: Mapping[str, str],
    elsewhere: str = "",
    *,
    public: bool = False,
    internal: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Flow]:
    """Resolve records by `addresses` {ip: node} and `locations` {node: location}.

    `elsewhere`: the node of unknown addresses; with "" each is its own node, at an unknown location. `public`: the VMs
    are rented, so the class of traffic within a zone depends on whether it went to a public address. `internal`: VM by
    network and internal address; "" for an ambiguous address, whose price is unknown. Any other internal address is taken
    to be in the sender's region and billed as another zone of it.
    """
    found: list[Flow] = []
    for r in records:
        here, inside = locations.get(r.vm), public and is_internal(r.dst_address)
        dst = addresses.get(r.dst_address)
        if dst is None and inside:
            holder = (internal or {}).get(network_of(here or ""), {}).get(r.dst_address)
            dst = PRIVATE if holder is None else holder or r.dst_address
        dst = dst or elsewhere or r.dst_address
        there = "/".join((here or "").split("/")[:2]) if dst == PRIVATE else locations.get(dst)
        kind = link_kind(dst, here, there, public=public and not inside)
        found.append(Flow(r.vm, dst, here, there, kind, r.epoch, r.phase, r.seconds, r.bytes, r.model_bytes))
    return found


def split_checkpoints(found: Iterable[Flow], uploads: Iterable[tuple[str, int, int]]) -> list[Flow]:
    """Divide the flows to the object store into the classes "checkpoint" and "store".

    `uploads`: (VM, epoch of the state, bytes that its program sent) of each stored checkpoint. They are taken from what
    the VM sent to the store after that epoch, which is measured, so they never exceed it; headers and requests for data
    remain "store".
    """
    rows = list(found)
    left = [flow.bytes for flow in rows]
    by_vm: dict[str, list[int]] = {}
    for n, flow in enumerate(rows):
        if flow.kind == "store":
            by_vm.setdefault(flow.src, []).append(n)
    for vm, epoch, sent_bytes in sorted(uploads):
        for n in sorted(by_vm.get(vm, ()), key=lambda n: (rows[n].epoch, rows[n].phase == "leaving", n)):
            if rows[n].epoch > epoch or rows[n].phase == "leaving":
                part = min(sent_bytes, left[n])
                left[n], sent_bytes = left[n] - part, sent_bytes - part
    out: list[Flow] = []
    for flow, rest in zip(rows, left, strict=True):
        out.append(flow if rest == flow.bytes else replace(flow, bytes=rest))
        if rest < flow.bytes:
            none = None if flow.model_bytes is None else 0
            out.append(replace(flow, kind=CHECKPOINT, bytes=flow.bytes - rest, model_bytes=none))
    return out


def traffic(
    found: Iterable[Flow], full_scale: Iterable[SwarmEpoch], scales: Scales, vms: Iterable[str]
) -> list[Traffic]:
    """Return the traffic matrix at full scale, sorted by source and destination. `full_scale`: the epochs.

    An epoch of a VM with egress records but no epoch record keeps its raw seconds. A peer that fell out of sync downloads
    the state again while others calculate: those bytes are the part above the pair's usual control rate.
    """
    peers = set(vms)
    full_scale = list(full_scale)
    # A joiner downloads the state during the first epoch that it reports, or the one before.
    arriving = {(vm, e.epoch - back) for e in full_scale for vm in e.joined for back in (0, 1)}
    reloading = {
        (vm, e.epoch + ahead)
        for e in full_scale
        for vm, why in e.dropped
        if fell_out_of_sync(why)
        for ahead in (0, 1)
    }
    seconds = {(p.vm, e.epoch): p.wall_s for e in full_scale for p in e.peers}
    calc_seconds = {(p.vm, e.epoch): p.calc_s - p.overlapped_s for e in full_scale for p in e.peers}
    cells: dict[tuple[str, str, str, int], dict[str, list[Flow]]] = {}
    for flow in found:
        key = (flow.src, flow.dst, flow.kind, flow.epoch)
        cells.setdefault(key, {}).setdefault(flow.phase, []).append(flow)
    phase_s: dict[tuple[str, int, str], float] = {}
    for (src, _, _, epoch), phases in cells.items():
        for phase, rows in phases.items():
            at = (src, epoch, phase)
            phase_s[at] = max(phase_s.get(at, 0.0), *(r.seconds for r in rows))
    usual = _control_rates(cells, phase_s, arriving | reloading) if reloading else {}
    totals: dict[tuple[str, str, str], float] = {}
    places: dict[tuple[str, str, str], Flow] = {}
    for (src, dst, kind, epoch), phases in sorted(cells.items()):
        link = (src, dst, kind)
        places[link] = next(iter(phases.values()))[0]
        if scales.none or kind == CHECKPOINT:  # exactly the counted bytes, whatever the seconds of the phases
            counted = sum(f.bytes for rows in phases.values() for f in rows)
            totals[link] = totals.get(link, 0) + counted
            continue
        if all(f.model_bytes is not None for rows in phases.values() for f in rows):
            sent = _phase_bytes(phases, lambda name, of=(src, epoch): phase_s.get((*of, name), 0.0))
            raw_s = (sent.calc_s + sent.settling_s) * scales.time
            totals[link] = totals.get(link, 0.0) + counted_bytes(
                sent, calc_seconds.get((src, epoch), raw_s), scales
            )
            continue
        calc = phases.get("calc", [])
        comm = [f for name in _AVERAGING for f in phases.get(name, [])]
        calc_s = phase_s.get((src, epoch, "calc"), 0.0)
        comm_s = sum(phase_s.get((src, epoch, name), 0.0) for name in _AVERAGING)
        calc_bytes: float = sum(f.bytes for f in calc)
        state = 0.0
        if (dst, epoch) in reloading:
            state = max(0.0, calc_bytes - usual.get(link, 0.0) * calc_s)
        totals[link] = totals.get(link, 0.0) + full_scale_bytes(
            calc_bytes=calc_bytes - state,
            calc_s=calc_s,
            comm_bytes=sum(f.bytes for f in comm) + state,
            comm_s=comm_s,
            epoch_s=seconds.get((src, epoch), (calc_s + comm_s) * scales.time),
            scales=scales,
            averages=dst in peers,
            arriving=(dst, epoch) in arriving,
        )
        # Bytes outside the epochs (joining, leaving) are sent once at any scale.
        outside = set(phases) - {"calc", *_AVERAGING}
        totals[link] += sum(f.bytes for name in outside for f in phases[name])
    return [
        Traffic(src, dst, p.src_location, p.dst_location, kind, totals[src, dst, kind])
        for (src, dst, kind), p in sorted(places.items())
    ]


def _phase_bytes(phases: Mapping[str, Sequence[Flow]], seconds_of: Callable[[str], float]) -> PhaseBytes:
    """Add up an epoch's bytes to one address. Bytes of joining and leaving count as communication: sent once."""

    def sent(*names: str) -> int:
        return sum(f.bytes for name in names for f in phases.get(name, []))

    return PhaseBytes(
        calc_bytes=sent("calc"),
        calc_s=seconds_of("calc"),
        settling_bytes=sent("settling"),
        settling_s=seconds_of("settling"),
        comm_bytes=sent(*(set(phases) - {"calc", "settling"})),
        model_bytes=sum(f.model_bytes or 0 for rows in phases.values() for f in rows),
    )


def _control_rates(
    cells: Mapping[tuple[str, str, str, int], Mapping[str, Sequence[Flow]]],
    phase_s: Mapping[tuple[str, int, str], float],
    excluded: set[tuple[str, int]],
) -> dict[tuple[str, str, str], float]:
    """Return bytes per second of each pair and class while the source calculates.

    `excluded`: (destination, epoch) in which state may have been sent.
    """
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for (src, dst, kind, epoch), phases in cells.items():
        if (dst, epoch) not in excluded and "calc" in phases:
            count, seconds = sums.get((src, dst, kind), (0, 0.0))
            sent = sum(f.bytes for f in phases["calc"])
            sums[src, dst, kind] = count + sent, seconds + phase_s[src, epoch, "calc"]
    return {link: count / seconds for link, (count, seconds) in sums.items() if seconds > 0}


def pair_bytes(found: Iterable[Flow]) -> dict[tuple[str, str], int]:
    """Return the raw bytes by (source, destination)."""
    totals: dict[tuple[str, str], int] = {}
    for flow in found:
        totals[flow.src, flow.dst] = totals.get((flow.src, flow.dst), 0) + flow.bytes
    return totals


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Bytes of one directed pair, as counted by the peers' meters and by the switch."""

    src: str
    dst: str
    meter_bytes: int
    switch_bytes: int

    @property
    def difference(self) -> float | None:
        """(meter - switch) / switch. None if the switch counted nothing."""
        return (self.meter_bytes - self.switch_bytes) / self.switch_bytes if self.switch_bytes else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Bytes of the meters compared with those of the switch, by pair and in total."""

    pairs: tuple[PairAgreement, ...]
    meter_bytes: int
    switch_bytes: int

    @property
    def difference(self) -> float | None:
        """(meter - switch) / switch over all pairs. None if the switch counted nothing."""
        return (self.meter_bytes - self.switch_bytes) / self.switch_bytes if self.switch_bytes else None

    @property
    def worst(self) -> PairAgreement | None:
        """The pair with the largest difference, among those that carry at least 1 % of all bytes."""
        large = [p for p in self.pairs if p.switch_bytes >= self.switch_bytes / 100 and p.switch_bytes > 0]
        return max(large, key=lambda p: abs(p.difference or 0.0), default=None)


def handed_over(found: Iterable[Flow]) -> tuple[int, int] | None:
    """Return (payload of the model counted by the peers' programs, bytes sent by their kernels to the same addresses).

    Raw, over the records that have both. None: not counted.
    """
    cells: dict[tuple[str, str], tuple[int, int]] = {}
    for flow in found:
        if flow.model_bytes is not None:
            model, sent = cells.get((flow.src, flow.dst), (0, 0))
            cells[flow.src, flow.dst] = model + flow.model_bytes, sent + flow.bytes
    both = [cell for cell in cells.values() if cell[0]]
    return (sum(m for m, _ in both), sum(n for _, n in both)) if cells else None


def switch_pairs(report: Mapping[str, Any] | None) -> dict[tuple[str, str], int] | None:
    """Return the bytes by (source, destination) of a `switch.json` (`sent_bytes`: {"src>dst": n}), None without it."""
    sent = (report or {}).get("sent_bytes")
    if not isinstance(sent, dict):
        return None
    pairs: dict[tuple[str, str], int] = {}
    items: dict[str, Any] = sent  # pyright: ignore[reportUnknownVariableType]
    for name, count in items.items():
        src, _, dst = str(name).partition(">")
        pairs[src, dst] = int(count)
    return pairs


def agreement(
    meter: Mapping[tuple[str, str], int], switch: Mapping[tuple[str, str], int], sources: Iterable[str]
) -> Agreement:
    """Compare the pairs whose source is in `sources`, the VMs that reported all their bytes."""
    chosen = set(sources)
    keys = sorted(k for k in {*meter, *switch} if k[0] in chosen)
    pairs = tuple(PairAgreement(*k, meter.get(k, 0), switch.get(k, 0)) for k in keys)
    return Agreement(pairs, sum(p.meter_bytes for p in pairs), sum(p.switch_bytes for p in pairs))


def tails(
    meter: Mapping[tuple[str, str], int], switch: Mapping[tuple[str, str], int], vms: Iterable[VmRecord]
) -> dict[tuple[str, str], int]:
    """Return the raw bytes that lost VMs sent after their last report: the switch's count minus the meters'.

    Known in the emulated cloud only. A real provider bills these bytes although no record has them.
    """
    dead = {row.vm for row in vms if died(row)}
    return {k: n - meter.get(k, 0) for k, n in sorted(switch.items()) if k[0] in dead and n > meter.get(k, 0)}


def died(row: VmRecord) -> bool:
    """Whether a VM was lost: preempted or failed."""
    return row.end in (VmEnd.PREEMPTED, VmEnd.FAILED)


def link_kind(dst: str, here: str | None, there: str | None, *, public: bool = False) -> str:
    """Return the traffic class of bytes to a node, from the two locations. `public`: sent to a public address."""
    if dst == STORE:
        return "store"
    if dst == MONITOR:
        return "control"
    if here is None or (there is None and dst != INTERNET):
        return "unknown"
    return egress_class(here, there or INTERNET, public=public) or "unknown"
