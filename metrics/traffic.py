"""Who sent how many bytes where: egress records, resolved from addresses to nodes and places.

A node is a VM's name, "store" or "monitor". The classes of the traffic matrix are those of the price book
(same_zone ... internet) between VMs, and two of their own: "store" (requests and acknowledgements to the
object store) and "control" (the monitor). An address nobody knows is its own node, class "unknown".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloud.prices.classes import INTERNET, egress_class, is_internal, network_of
from metrics.epochs.scaling import PhaseBytes, Scales, counted_bytes, study_bytes
from metrics.epochs.throughput import SwarmEpoch
from metrics.records import EgressRecord, VmEnd, VmRecord, fell_out_of_sync

STORE = "store"
MONITOR = "monitor"
PRIVATE = "private"  # internal addresses of rented VMs' networks that are no VM's

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
    model_bytes: int | None = None  # of the model handed over for it, without headers; None: nobody counted


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a whole run from one node to another, of one class."""

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

    `elsewhere`: the node of addresses that are nobody's; "" leaves each its own node, of unknown place. `public`: the
    VMs are rented, so that the class of a byte inside a zone depends on whether it went to a public address.
    `internal`: VM by network and internal address, "" for one that is nobody's and so of unknown price. Any other internal
    address is in the sender's region, and billed as another zone of it.
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


def traffic(
    found: Iterable[Flow], study: Iterable[SwarmEpoch], scales: Scales, vms: Iterable[str]
) -> list[Traffic]:
    """The matrix at study scale, sorted by source and destination. `study`: the epochs at study scale.

    An epoch of a VM that left egress records but no epoch record keeps its raw seconds. To a peer that fell out of
    sync goes the state once more, while others calculate: what exceeds the pair's usual control rate there.
    """
    peers = set(vms)
    study = list(study)
    # Its state is sent while the others work on the first epoch it reports, or on the one before.
    arriving = {(vm, e.epoch - back) for e in study for vm in e.joined for back in (0, 1)}
    reloading = {
        (vm, e.epoch + ahead)
        for e in study
        for vm, why in e.dropped
        if fell_out_of_sync(why)
        for ahead in (0, 1)
    }
    seconds = {(p.vm, e.epoch): p.wall_s for e in study for p in e.peers}
    calc_seconds = {(p.vm, e.epoch): p.calc_s - p.overlapped_s for e in study for p in e.peers}
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
        if scales.none:  # exactly what was counted, whatever the phases' seconds say
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
        totals[link] = totals.get(link, 0.0) + study_bytes(
            calc_bytes=calc_bytes - state,
            calc_s=calc_s,
            comm_bytes=sum(f.bytes for f in comm) + state,
            comm_s=comm_s,
            epoch_s=seconds.get((src, epoch), (calc_s + comm_s) * scales.time),
            scales=scales,
            averages=dst in peers,
            arriving=(dst, epoch) in arriving,
        )
        # Bytes outside an epoch's phases (joining, leaving) are sent once at any scale.
        outside = set(phases) - {"calc", *_AVERAGING}
        totals[link] += sum(f.bytes for name in outside for f in phases[name])
    return [
        Traffic(src, dst, p.src_location, p.dst_location, kind, totals[src, dst, kind])
        for (src, dst, kind), p in sorted(places.items())
    ]


def _phase_bytes(phases: Mapping[str, Sequence[Flow]], seconds_of: Callable[[str], float]) -> PhaseBytes:
    """An epoch's bytes to one address. What was sent before the first epoch and after the last is sent once."""

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
    apart: set[tuple[str, int]],
) -> dict[tuple[str, str, str], float]:
    """Bytes a second of each pair and class while the source calculates, in the epochs in which no state was sent."""
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for (src, dst, kind, epoch), phases in cells.items():
        if (dst, epoch) not in apart and "calc" in phases:
            count, seconds = sums.get((src, dst, kind), (0, 0.0))
            sent = sum(f.bytes for f in phases["calc"])
            sums[src, dst, kind] = count + sent, seconds + phase_s[src, epoch, "calc"]
    return {link: count / seconds for link, (count, seconds) in sums.items() if seconds > 0}


def pair_bytes(found: Iterable[Flow]) -> dict[tuple[str, str], int]:
    """Raw bytes by (source, destination)."""
    totals: dict[tuple[str, str], int] = {}
    for flow in found:
        totals[flow.src, flow.dst] = totals.get((flow.src, flow.dst), 0) + flow.bytes
    return totals


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """What the peers' meters and the switch counted on one directed pair."""

    src: str
    dst: str
    meter_bytes: int
    switch_bytes: int

    @property
    def difference(self) -> float | None:
        """(meter - switch) / switch; None when the switch saw nothing."""
        return (self.meter_bytes - self.switch_bytes) / self.switch_bytes if self.switch_bytes else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Meters against switch: each pair, and all of them together."""

    pairs: tuple[PairAgreement, ...]
    meter_bytes: int
    switch_bytes: int

    @property
    def difference(self) -> float | None:
        """(meter - switch) / switch over all pairs; None when the switch saw nothing."""
        return (self.meter_bytes - self.switch_bytes) / self.switch_bytes if self.switch_bytes else None

    @property
    def worst(self) -> PairAgreement | None:
        """The pair that differs most, of those that carry at least a hundredth of all bytes."""
        large = [p for p in self.pairs if p.switch_bytes >= self.switch_bytes / 100 and p.switch_bytes > 0]
        return max(large, key=lambda p: abs(p.difference or 0.0), default=None)


def handed_over(found: Iterable[Flow]) -> tuple[int, int] | None:
    """(bytes of the model that peers say they handed over, all bytes their kernels sent to the same addresses), raw.

    Of the epochs' and last records that have both; None: nobody counted.
    """
    cells: dict[tuple[str, str], tuple[int, int]] = {}
    for flow in found:
        if flow.model_bytes is not None:
            model, sent = cells.get((flow.src, flow.dst), (0, 0))
            cells[flow.src, flow.dst] = model + flow.model_bytes, sent + flow.bytes
    both = [cell for cell in cells.values() if cell[0]]
    return (sum(m for m, _ in both), sum(n for _, n in both)) if cells else None


def switch_pairs(report: Mapping[str, Any] | None) -> dict[tuple[str, str], int] | None:
    """Bytes by (source, destination) from a `switch.json` (`sent_bytes`: {"src>dst": n}); None without."""
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
    """Compare pairs whose source is one of `sources`: the VMs that lived to report all they sent."""
    chosen = set(sources)
    keys = sorted(k for k in {*meter, *switch} if k[0] in chosen)
    pairs = tuple(PairAgreement(*k, meter.get(k, 0), switch.get(k, 0)) for k in keys)
    return Agreement(pairs, sum(p.meter_bytes for p in pairs), sum(p.switch_bytes for p in pairs))


def tails(
    meter: Mapping[tuple[str, str], int], switch: Mapping[tuple[str, str], int], vms: Iterable[VmRecord]
) -> dict[tuple[str, str], int]:
    """What VMs that died sent after their last report: the switch's bytes beyond the meter's, raw.

    Known in the emulated cloud only; a real provider bills them unseen.
    """
    dead = {row.vm for row in vms if died(row)}
    return {k: n - meter.get(k, 0) for k, n in sorted(switch.items()) if k[0] in dead and n > meter.get(k, 0)}


def died(row: VmRecord) -> bool:
    """Whether a VM was lost: taken back, or failed."""
    return row.end in (VmEnd.PREEMPTED, VmEnd.FAILED)


def link_kind(dst: str, here: str | None, there: str | None, *, public: bool = False) -> str:
    """The class of the traffic matrix of bytes to a node, from the two locations. `public`: to a public address."""
    if dst == STORE:
        return "store"
    if dst == MONITOR:
        return "control"
    if here is None or (there is None and dst != INTERNET):
        return "unknown"
    return egress_class(here, there or INTERNET, public=public) or "unknown"
