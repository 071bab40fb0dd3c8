"""The ledger: VM seconds, egress and data egress as Decimal dollars, each line with where its price is from.

Unknown is contagious: a line without a price makes its sum and the total unknown (None), with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from cloud.prices.book import PriceBook
from cloud.prices.classes import INTERNET
from metrics.egress import STORE, Flow, Traffic, flows, traffic
from metrics.records import EgressRecord, EpochRecord, VmRecord
from metrics.scale import Scales, study_epochs, study_seconds, vm_epoch_seconds
from metrics.throughput import SwarmEpoch, swarm_epochs

__all__ = [
    "CostLine",
    "CostSoFar",
    "Ledger",
    "Terms",
    "billed_seconds",
    "cost_so_far",
    "data_lines",
    "egress_lines",
    "ledger",
    "unmetered_lines",
    "vm_lines",
]

_HOUR = Decimal(3600)


@dataclass(frozen=True)
class Terms:
    """What a run's dollars depend on besides its records."""

    scales: Scales
    raw_target: int | None
    book: PriceBook | None
    addresses: Mapping[str, str]
    locations: Mapping[str, str]
    bytes_per_sample: float | None
    store_location: str | None  # where the store's egress is billed, e.g. "b2/us-west-1"


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of the bill; `usd` None: unknown, then `price` says why."""

    kind: str  # "vm", "egress", "data"
    what: str
    src: str
    dst: str
    quantity: float | None  # None: unknown
    unit: str  # "s" or "bytes"
    usd: Decimal | None
    price: str


@dataclass(frozen=True)
class Ledger:
    """All lines and their sums."""

    lines: tuple[CostLine, ...]

    def sum(self, kind: str | None = None) -> Decimal | None:
        """Dollars of one kind (None: of all); None as soon as one line is unknown."""
        total = Decimal(0)
        for line in self.lines:
            if kind is None or line.kind == kind:
                if line.usd is None:
                    return None
                total += line.usd
        return total

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why the total is unknown: each reason once; empty when it is known."""
        return tuple(dict.fromkeys(line.price for line in self.lines if line.usd is None))


@dataclass(frozen=True, slots=True)
class CostSoFar:
    """For the live view and the budget guard, at study scale."""

    spent_usd: Decimal | None
    usd_per_h: Decimal | None  # of the VMs rented now; egress is not in it
    unknown: tuple[str, ...]


def billed_seconds(row: VmRecord, now_s: float, epochs: Iterable[tuple[float, float]], terms: Terms) -> float:
    """A VM's seconds from request to end (or now) at study scale, at least the provider's minimum."""
    raw = max(0.0, (now_s if row.ended_s is None else row.ended_s) - row.requested_s)
    seconds = study_seconds(raw, epochs, terms.scales)
    price = terms.book.vm(row.location, row.accelerator, row.use_spot) if terms.book else None
    return max(seconds, float(price.minimum_s)) if price and price.minimum_s else seconds


def vm_lines(
    vms: Iterable[VmRecord], now_s: float, seconds: Mapping[str, list[tuple[float, float]]], terms: Terms
) -> list[CostLine]:
    """One line a VM. `seconds`: see `metrics.scale.vm_epoch_seconds`."""
    lines: list[CostLine] = []
    for row in vms:
        billed = billed_seconds(row, now_s, seconds.get(row.vm, []), terms)
        usd = None if row.usd_per_h is None else row.usd_per_h * Decimal(repr(billed)) / _HOUR
        market = "spot" if row.use_spot else "on demand"
        source = row.price_source
        if usd is None:
            why = f" ({source})" if source else ""
            source = f"no price for {row.accelerator} {market} at {row.location}{why}"
        what = f"{row.vm}: {row.instance} {market}"
        lines.append(CostLine("vm", what, row.vm, "", billed, "s", usd, source))
    return lines


def egress_lines(rows: Iterable[Traffic], terms: Terms) -> list[CostLine]:
    """One line a directed pair. Bytes to the store and the monitor are billed as what they are: bytes to
    their place, or to the internet when it is in no cloud."""
    lines: list[CostLine] = []
    for row in rows:
        usd: Decimal | None = None
        dst = row.dst_location or (INTERNET if row.kind in ("store", "control") else "")
        where = f"{row.src_location or row.src} to {row.dst_location or row.dst}"
        if terms.book is None:
            reason = "no price book"
        elif row.kind == "unknown":
            reason = f"unknown place: {where}"
        else:
            usd = terms.book.egress(row.src_location or "", dst, max(0, round(row.bytes)))
            reason = terms.book.name if usd is not None else f"no price for {row.kind} egress, {where}"
        what = f"egress {row.kind}"
        lines.append(CostLine("egress", what, row.src, row.dst, row.bytes, "bytes", usd, reason))
    return lines


def unmetered_lines(raw: Iterable[SwarmEpoch], found: Iterable[Flow]) -> list[CostLine]:
    """One unknown line for each VM that trained with others and has not a single record of egress: nobody
    could read its counters (loopback, or a kernel without them), and averaging always sends something."""
    metered = {flow.src for flow in found}
    trained = {p.vm for e in raw if len(e.peers) > 1 for p in e.peers}
    return [
        CostLine("egress", "egress", vm, "", None, "bytes", None, f"the egress of {vm} was not measured")
        for vm in sorted(trained - metered)
    ]


def data_lines(ingress: Mapping[str, float | None], terms: Terms) -> list[CostLine]:
    """One line a VM: bytes it read from the store at study scale, billed by the store."""
    lines: list[CostLine] = []
    for vm, count in sorted(ingress.items()):
        usd: Decimal | None = None
        if count is None:
            reason = "unknown size of the modelled dataset's samples"
        elif terms.book is None:
            reason = "no price book"
        elif terms.store_location is None:
            reason = "unknown store"
        else:
            usd = terms.book.store_egress(terms.store_location, terms.locations.get(vm, ""), round(count))
            reason = (
                terms.book.name if usd is not None else f"no price for reading from {terms.store_location}"
            )
        lines.append(CostLine("data", "reading data", STORE, vm, count, "bytes", usd, reason))
    return lines


def ledger(
    vms: Iterable[VmRecord],
    now_s: float,
    raw: list[SwarmEpoch],
    study: list[SwarmEpoch],
    found: Iterable[Flow],
    ingress: Mapping[str, float | None],
    terms: Terms,
) -> Ledger:
    """The whole bill. `now_s` ends the VMs that still run; `ingress`: bytes by VM at study scale."""
    rows, sent = list(vms), list(found)
    matrix = traffic(sent, study, terms.scales, [row.vm for row in rows])
    lines = vm_lines(rows, now_s, vm_epoch_seconds(raw, study), terms)
    lines += egress_lines(matrix, terms) + unmetered_lines(raw, sent) + data_lines(ingress, terms)
    return Ledger(tuple(lines))


def cost_so_far(
    vms: Iterable[VmRecord],
    epochs: Iterable[EpochRecord],
    egress: Iterable[EgressRecord],
    now_s: float,
    terms: Terms,
    ingress: Mapping[str, int] | None = None,
    last_epoch: int | None = None,
) -> CostSoFar:
    """Dollars until now at study scale, counting the epoch that is under way.

    The seconds since a running VM's last epoch are taken to grow as that epoch did, for as long as that one
    took, so that the sum does not jump when the next one ends and what a VM waits longer counts once. After
    `last_epoch` nothing grows. `ingress`: raw network bytes by VM, needed for unscaled runs only.
    """
    rows = list(vms)
    records = list(epochs)
    raw = swarm_epochs(records, warmup_epochs=0)
    study = study_epochs(raw, terms.scales, terms.raw_target)
    seconds = vm_epoch_seconds(raw, study)
    last_end: dict[str, tuple[float, int]] = {}
    for record in records:
        last_end[record.vm] = max(last_end.get(record.vm, (0.0, 0)), (record.ended_s, record.epoch))
    samples: dict[str, float] = {}
    for epoch in study:
        for p in epoch.peers:
            samples[p.vm] = samples.get(p.vm, 0.0) + p.samples
    for row in rows:
        known = seconds.get(row.vm)
        if row.ended_s is None and known and known[-1][0] > 0:
            ended_s, epoch_number = last_end[row.vm]
            if last_epoch is None or epoch_number < last_epoch:
                raw_s, study_s = known[-1]
                open_s = min(max(0.0, now_s - ended_s), raw_s)
                known.append((open_s, open_s * study_s / raw_s))
    per_sample = terms.bytes_per_sample
    read: dict[str, float | None]
    if terms.scales.none:
        read = {vm: float(count) for vm, count in (ingress or {}).items()}
    else:
        read = {vm: None if per_sample is None else n * per_sample for vm, n in samples.items()}
    sent = flows(egress, terms.addresses, terms.locations)
    matrix = traffic(sent, study, terms.scales, [row.vm for row in rows])
    lines = vm_lines(rows, now_s, seconds, terms) + egress_lines(matrix, terms)
    bill = Ledger(tuple(lines + unmetered_lines(raw, sent) + data_lines(read, terms)))
    rented = [row.usd_per_h for row in rows if row.ended_s is None]
    known_prices = [usd for usd in rented if usd is not None]
    per_h = sum(known_prices, Decimal(0)) if len(known_prices) == len(rented) else None
    return CostSoFar(bill.sum(), per_h, bill.unknown)
