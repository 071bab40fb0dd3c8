"""Cost of a run under the paper's assumptions (`metrics.paper.basis`), from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from cloud.prices.book import PriceBook
from metrics.cost.ledger import CONTROLLER
from metrics.paper.basis import (
    EGRESS_KINDS,
    PublishedCost,
    gb_per_h,
    kind_of,
    pairs,
    split,
    usd_per_gb,
    usd_per_million,
    vm_usd_per_h,
)
from metrics.records import VmRecord
from metrics.run import RunNumbers

_STORE = "b2"  # Backblaze B2, the paper's store


@dataclass(frozen=True)
class PublishedRun:
    """One run under the paper's assumptions. None: unknown, and `unknown` says why."""

    vms: Mapping[str, PublishedCost]
    hours: Mapping[str, Decimal]  # of each VM's log
    peers: int
    egress_gb_per_h: Decimal | None  # per VM, the paper's "GB"
    loading_gb_per_h: Decimal | None
    split: Mapping[str, Fraction]  # shares of the egress by kind, mean over the VMs
    sps: float | None
    unknown: tuple[str, ...]

    def usd(self, kind: str | None = None) -> Decimal | None:
        """Return the dollars of all hours, for one kind (a field of PublishedCost) or in total."""
        total = Decimal(0)
        for vm, cost in self.vms.items():
            per_h = cost.usd_per_h if kind is None else getattr(cost, kind)
            if per_h is None:
                return None
            total += per_h * self.hours[vm]
        return total

    def usd_per_vm_h(self, kind: str | None = None) -> Decimal | None:
        """Return $ per VM hour, for one kind or in total, mean over the VMs. None: unknown, or no VM."""
        each = [cost.usd_per_h if kind is None else getattr(cost, kind) for cost in self.vms.values()]
        known = [usd for usd in each if usd is not None]
        return sum(known, Decimal(0)) / len(known) if known and len(known) == len(each) else None

    def usd_per_1m(self, loading: bool = True) -> Decimal | None:
        """Return $ per 1M samples of `peers` such VMs at `sps`. The paper's Figures 1 and 15 are without `loading`."""
        per_h, read = self.usd_per_vm_h(), self.usd_per_vm_h("loading")
        if not loading:
            per_h = None if per_h is None or read is None else per_h - read
        return None if per_h is None or not self.sps else usd_per_million(self.peers * per_h, self.sps)


def published_run(run: RunNumbers, book: PriceBook, sps: float | None, peers: int) -> PublishedRun:
    """Return the cost of the whole run at a book's prices (the paper's: `study-2023-04`).

    `sps`: by phase timers for a single GPU, the mean of the epochs' rates for a swarm. `peers`: number of VMs that trained
    at a time. Bytes of an imported run are those of its network cards, as logged. Our own runs have no such counter: their
    bytes are the egress records and the data read, at full scale, over the VMs' seconds.
    """
    rows = [row for row in run.vms if row.slot != CONTROLLER]
    unknown: list[str] = []
    seconds, sent, read = _counted(run, rows)
    total_s = sum(seconds.values(), Decimal(0))
    egress = gb_per_h(sent, total_s) if total_s > 0 and sent is not None else None
    loading = gb_per_h(read, total_s) if total_s > 0 and read is not None else None
    places = list({row.slot: row.location for row in sorted(rows, key=lambda r: r.generation)}.values())
    if len(places) == 1 and peers > 1:
        places.append("")  # a peer without any information
    if egress is None and len(places) > 1:
        unknown.append("the bytes that the VMs sent were not counted")
    if loading is None:
        unknown.append("the bytes that the VMs read were not counted")
    store = run.terms.store_location or _STORE
    costs: dict[str, PublishedCost] = {}
    shares: dict[str, Fraction] = dict.fromkeys(EGRESS_KINDS, Fraction(0))
    ways: dict[str, _Ways] = {}
    for row in rows:
        if row.location not in ways:
            ways[row.location] = _ways(book, places, row.location)
        found = ways[row.location]
        unknown += found.unknown
        for kind, share in found.split.items():
            shares[kind] += share / len(rows)
        price, reading = _vm_usd_per_h(book, row), book.store_ladder(store, row.location)
        if price is None:
            unknown.append(f"no price in {book.name} for {row.accelerator or 'the VM'} at {row.location}")
        if reading is None:
            unknown.append(f"no price in {book.name} for reading from {store}")
        per_gb = reading.tiers[0].usd if reading else None
        costs[row.vm] = vm_usd_per_h(price, egress, found.shares, loading, per_gb)
    if sps is None:
        unknown.append("the rate is unknown")
    return PublishedRun(
        vms=costs,
        hours={row.vm: seconds.get(row.vm, _recorded_s(row)) / 3600 for row in rows},
        peers=peers,
        egress_gb_per_h=egress,
        loading_gb_per_h=loading,
        split={kind: share for kind, share in shares.items() if share},
        sps=sps,
        unknown=tuple(dict.fromkeys(unknown)),
    )


@dataclass(frozen=True)
class _Ways:
    """Destinations of a VM's bytes, and why prices are unknown."""

    shares: tuple[tuple[str, Fraction, Decimal | None], ...]  # (kind, share, $ per "GB")
    split: Mapping[str, Fraction]  # without traffic to unknown locations
    unknown: tuple[str, ...]


def _ways(book: PriceBook, places: list[str], own: str) -> _Ways:
    shared = pairs(places, own)
    shares: list[tuple[str, Fraction, Decimal | None]] = []
    unknown: list[str] = []
    for (src, dst), count in Counter(shared).items():
        kind, price = kind_of(src, dst), usd_per_gb(book, src, dst)
        if kind is None:
            unknown.append(f"unknown place: {src or 'a peer'} to {dst or 'a peer'}")
        elif price is None:
            unknown.append(f"no price in {book.name} for bytes from {src} to {dst}")
        # Traffic to an unknown location has no price, so its kind does not matter.
        shares.append((kind or "between", Fraction(count, len(shared)), price))
    known = {kind: share for kind, share in split(shared).items() if kind is not None}
    return _Ways(tuple(shares), known, tuple(unknown))


def _counted(run: RunNumbers, rows: list[VmRecord]) -> tuple[dict[str, Decimal], int | None, int | None]:
    """Return seconds by VM, bytes sent, and bytes read in addition to averaging. None: not counted."""
    nic = run.meta.logs.nic
    if nic is not None:
        seconds = {vm: Decimal(repr(float(row["seconds"]))) for vm, row in nic.items()}
        if not nic:
            return seconds, None, None
        sent = sum(int(row.get("raw_sent_bytes", row["sent_bytes"])) for row in nic.values())
        received = sum(int(row.get("raw_received_bytes", row["received_bytes"])) for row in nic.values())
        return seconds, sent, max(0, received - sent)
    names = {row.vm for row in rows}
    seconds = {
        line.src: Decimal(repr(line.quantity))
        for line in run.bill.lines
        if line.kind == "vm" and line.quantity is not None
    }
    lines = run.bill.measured.lines
    parts = [line.quantity for line in lines if line.kind == "egress" and line.src in names]
    read = [run.ingress.get(vm, 0.0) for vm in names]
    return seconds, _whole(parts), _whole(read)


def _recorded_s(row: VmRecord) -> Decimal:
    """Return a VM's seconds from its record, for a log without counters."""
    return Decimal(
        repr(max(0.0, (row.requested_s if row.ended_s is None else row.ended_s) - row.requested_s))
    )


def _whole(parts: list[float | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return round(sum(known)) if len(known) == len(parts) else None


def _vm_usd_per_h(book: PriceBook, row: VmRecord) -> Decimal | None:
    """Return the spot price, or the on-demand price if there is none (LambdaLabs).

    A VM of unknown region costs what the importer found in the book.
    """
    price = book.vm(row.location, row.accelerator, use_spot=True)
    price = price or book.vm(row.location, row.accelerator, use_spot=False)
    if price is None and row.price_source == book.name:
        return row.usd_per_h
    return price.usd if price else None
