"""Lines of the ledger: VM seconds, egress, data, storage and the controller's VM, in exact Decimal dollars.

All bytes billed by one price ladder in one calendar month share its tiers, whichever pair sent them. Bytes are
assigned to tiers in the order of the pairs' names, so the order of the input does not matter. Unknown propagates:
a line without a price makes its sum and the total unknown (None), with the reason. Quantities are at full scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

from cloud.prices.book import Ladder, Price, PriceBook, exact, tiered_usd
from cloud.prices.classes import INTERNET
from metrics.epochs.scaling import Scales, full_scale_seconds
from metrics.epochs.throughput import SwarmEpoch
from metrics.records import VmRecord
from metrics.traffic import CHECKPOINT, STORE, Flow, Traffic

KINDS = ("vm", "egress", "data", "storage", "controller")
READING_CHECKPOINTS = "reading checkpoints"
KEEPING_CHECKPOINTS = "checkpoints kept"
CONTROLLER = "controller"  # slot of the VM that runs the controller and does not train
MONTH_S = 730 * 3600  # the month of storage prices: a twelfth of a year
_HOUR = Decimal(3600)
_YEAR_10000_S = 253_402_300_800


@dataclass(frozen=True)
class Terms:
    """Pricing terms of a run: what its cost depends on besides its records."""

    scales: Scales
    raw_target: int | None
    book: PriceBook | None
    addresses: Mapping[str, str]
    locations: Mapping[str, str]
    bytes_per_sample: float | None
    store_location: str | None  # where the store's egress is billed, e.g. "b2/us-west-1"
    dataset_bytes: int | None = None  # stored for this run only; None: nothing, or unknown
    # By VM: (until unix s, USD per hour) of each price before the one in its record.
    price_changes: Mapping[str, Sequence[tuple[float, Decimal]]] = field(
        default_factory=dict[str, Sequence[tuple[float, Decimal]]]
    )
    # The plan's ceiling for the traffic of one epoch in dollars, and the expected raw seconds of an epoch. None: unknown.
    epoch_ceiling: tuple[Decimal, float] | None = None
    public: bool = False  # the VMs are rented: bytes to public addresses are billed as such
    # VM by network and internal address; "": ambiguous.
    internal: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    elsewhere: str = ""  # the node of unknown addresses; "": their location is unknown


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of the bill. If `usd` is None (unknown), `price` says why."""

    kind: str  # one of KINDS
    what: str
    src: str
    dst: str
    quantity: float | None  # bytes are whole; None: unknown
    unit: str  # "s" or "bytes"
    usd: Decimal | None
    price: str
    tier: str = ""  # start of the line's tier, "1024 GiB"; "" if the price has one tier or none
    month: str = ""  # calendar month (UTC) whose tiers apply, "2026-11"
    estimated: bool = False  # the quantity is estimated, see `metrics.cost.unreported`


@dataclass(frozen=True)
class Ledger:
    """All lines of a bill, with their sums."""

    lines: tuple[CostLine, ...]

    def sum(self, kind: str | None = None) -> Decimal | None:
        """Return the exact dollars of one kind (default: all). None if any of the lines is unknown."""
        total = Decimal(0)
        with exact():
            for line in self.lines:
                if kind is None or line.kind == kind:
                    if line.usd is None:
                        return None
                    total += line.usd
        return total

    @property
    def measured(self) -> Ledger:
        """The lines with a measured quantity."""
        return Ledger(tuple(line for line in self.lines if not line.estimated))

    @property
    def estimated_usd(self) -> Decimal | None:
        """Dollars of the lines with an estimated quantity. None if any of them is unknown."""
        return Ledger(tuple(line for line in self.lines if line.estimated)).sum()

    def by_link_and_class(self) -> dict[tuple[str, str, str], Decimal | None]:
        """Return measured egress dollars by (source, destination, class). None where a line is unknown."""
        ways: dict[tuple[str, str, str], list[CostLine]] = {}
        for line in self.lines:
            if line.kind == "egress" and not line.estimated:
                key = (line.src, line.dst, line.what.removeprefix("egress "))
                ways.setdefault(key, []).append(line)
        return {way: Ledger(tuple(lines)).sum() for way, lines in ways.items()}

    def by_link(self, kind: str = "egress") -> dict[tuple[str, str], Decimal | None]:
        """Return measured dollars by (source, destination), over tiers and months. None where a line is unknown."""
        links: dict[tuple[str, str], list[CostLine]] = {}
        for line in self.lines:
            if line.kind == kind and not line.estimated:
                links.setdefault((line.src, line.dst), []).append(line)
        return {link: Ledger(tuple(lines)).sum() for link, lines in links.items()}

    def class_usd(self, kind: str) -> Decimal | None:
        """Return the exact egress dollars of one class of the traffic matrix; 0 without such bytes. None: unknown."""
        return Ledger(tuple(line for line in self.lines if line.what == f"egress {kind}")).sum()

    def checkpoints_usd(self) -> Decimal | None:
        """Return the exact dollars of checkpoints: sent, downloaded and kept; 0 without any. None: unknown."""
        what = (f"egress {CHECKPOINT}", READING_CHECKPOINTS, KEEPING_CHECKPOINTS)
        return Ledger(tuple(line for line in self.lines if line.what in what)).sum()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Reasons why the total is unknown, without duplicates; empty if it is known."""
        return tuple(dict.fromkeys(line.price for line in self.lines if line.usd is None))


def billed_seconds(
    row: VmRecord, now_s: float, epochs: Iterable[tuple[float, float]], terms: Terms
) -> Decimal:
    """Return a VM's seconds from request to end (or now) at full scale, rounded as its provider does.

    `epochs`: (raw, full-scale) seconds of its epochs. Without a price in the book the seconds are not rounded.
    """
    raw = max(0.0, (now_s if row.ended_s is None else row.ended_s) - row.requested_s)
    seconds = max(0.0, full_scale_seconds(raw, epochs, terms.scales))
    price = terms.book.vm(row.location, row.accelerator, row.use_spot) if terms.book else None
    return price.billed_seconds(seconds) if price else Decimal(repr(seconds))


def vm_lines(
    vms: Iterable[VmRecord], now_s: float, seconds: Mapping[str, list[tuple[float, float]]], terms: Terms
) -> list[CostLine]:
    """Return one line per VM. `seconds`: see `metrics.epochs.scaling.vm_epoch_seconds`."""
    lines: list[CostLine] = []
    for row in vms:
        billed = billed_seconds(row, now_s, seconds.get(row.vm, []), terms)
        usd = None if row.usd_per_h is None else _mean_usd_per_h(row, now_s, terms) * billed / _HOUR
        market = "spot" if row.use_spot else "on demand"
        source = row.price_source
        if usd is None:
            why = f" ({source})" if source else ""
            source = f"no price for {row.accelerator} {market} at {row.location}{why}"
        what = f"{row.vm}: {row.instance} {market}"
        kind = "controller" if row.slot == CONTROLLER else "vm"
        lines.append(CostLine(kind, what, row.vm, "", float(billed), "s", usd, source))
    return lines


def _mean_usd_per_h(row: VmRecord, now_s: float, terms: Terms) -> Decimal:
    """Return a VM's price per hour: its record's, or the time-weighted mean if the price changed."""
    assert row.usd_per_h is not None
    changes = terms.price_changes.get(row.vm)
    ended_s = now_s if row.ended_s is None else row.ended_s
    if not changes or ended_s <= row.requested_s:
        return row.usd_per_h
    usd, at_s = Decimal(0), row.requested_s
    for until_s, usd_per_h in changes:
        until_s = min(max(until_s, at_s), ended_s)
        usd += usd_per_h * Decimal(repr(until_s - at_s))
        at_s = until_s
    usd += row.usd_per_h * Decimal(repr(ended_s - at_s))
    return usd / Decimal(repr(ended_s - row.requested_s))


def egress_lines(rows: Iterable[Traffic], terms: Terms, month: str = "") -> list[CostLine]:
    """Return one line per directed pair and tier for the bytes of one calendar month, sorted by pair.

    Bytes to the store and the monitor are billed by their location, or as internet traffic if that is in no cloud.
    Rows of the same pair are added up.
    """
    amounts: dict[tuple[str, str, str, str, str], list[float]] = {}
    for row in rows:
        pair = (row.src, row.dst, row.kind, row.src_location or "", row.dst_location or "")
        amounts.setdefault(pair, []).append(row.bytes)
    ladders: dict[tuple[str, str, str], Ladder | None] = {}
    used: dict[tuple[str, ...], int] = {}
    lines: list[CostLine] = []
    for (src, dst, kind, here, there), parts in sorted(amounts.items()):
        sent = _whole(parts)
        what, where = f"egress {kind}", f"{here or src} to {there or dst}"
        reason, ladder = "", None
        if terms.book is None:
            reason = "no price book"
        elif kind == "unknown":
            reason = f"unknown place: {where}"
        else:
            end = there or (INTERNET if kind in ("store", CHECKPOINT, "control", "internet") else "")
            way = (here, end, kind)
            if way not in ladders:
                ladders[way] = (
                    terms.book.upload_ladder(here, end)
                    if there and kind in ("store", CHECKPOINT)
                    else terms.book.ladder(here, end, public=kind == "same_zone_public")
                )
            ladder = ladders[way]
            reason = terms.book.name if ladder else f"no price for {kind} egress, {where}"
        lines += _priced("egress", what, (src, dst), sent, ladder, used, reason, month)
    return lines


def unmetered_lines(raw: Iterable[SwarmEpoch], found: Iterable[Flow]) -> list[CostLine]:
    """Return an unknown line for each VM that trained with others but has no egress record.

    Averaging always sends bytes, so its counters could not be read (loopback, or a kernel without them).
    """
    metered = {flow.src for flow in found}
    trained = {p.vm for e in raw if not e.lone for p in e.peers}
    return [
        CostLine("egress", "egress", vm, "", None, "bytes", None, f"the egress of {vm} was not measured")
        for vm in sorted(trained - metered)
    ]


def data_lines(
    ingress: Mapping[str, float | None],
    terms: Terms,
    month: str = "",
    checkpoints: Mapping[str, int] | None = None,
) -> list[CostLine]:
    """Return one line per VM and tier for the bytes it read from the store at full scale, billed by the store.

    `checkpoints`: bytes of the checkpoints that each VM downloaded, in lines of their own.
    """
    used: dict[tuple[str, ...], int] = {}
    lines: list[CostLine] = []
    reads = [("reading data", vm, count) for vm, count in sorted(ingress.items())]
    reads += [(READING_CHECKPOINTS, vm, count) for vm, count in sorted((checkpoints or {}).items())]
    for what, vm, count in reads:
        ladder = None
        if count is None:
            scaled = "unknown sample size of the modelled dataset"
            reason = f"the bytes that {vm} read were not counted" if terms.scales.none else scaled
        elif terms.book is None:
            reason = "no price book"
        elif terms.store_location is None:
            reason = "unknown store"
        else:
            ladder = terms.book.store_ladder(terms.store_location, terms.locations.get(vm, ""))
            reason = terms.book.name if ladder else f"no price for reading from {terms.store_location}"
        read = None if count is None else _whole([count])
        lines += _priced("data", what, (STORE, vm), read, ladder, used, reason, month)
    return lines


def storage_lines(seconds: float, terms: Terms) -> list[CostLine]:
    """Return the cost of storing `terms.dataset_bytes` for `seconds` (full scale) of a month of `MONTH_S`.

    No line without dataset bytes: a data set that exists without the run is not part of its cost.
    """
    kept = terms.dataset_bytes
    if kept is None:
        return []
    usd, reason = _stored_usd([(kept, max(0.0, seconds))], terms)
    return [CostLine("storage", f"data kept for {seconds:.0f} s", STORE, "", kept, "bytes", usd, reason)]


def kept_lines(kept: Sequence[tuple[int, float]], terms: Terms) -> list[CostLine]:
    """Return the cost of keeping checkpoints, each of (bytes, seconds), in a line whose quantity is all of their bytes.

    Each is billed for its part of a month of `MONTH_S`. No line without checkpoints.
    """
    if not kept:
        return []
    usd, reason = _stored_usd(kept, terms)
    total = sum(count for count, _ in kept)
    return [CostLine("storage", KEEPING_CHECKPOINTS, STORE, "", total, "bytes", usd, reason)]


def _stored_usd(kept: Sequence[tuple[int, float]], terms: Terms) -> tuple[Decimal | None, str]:
    """Dollars for storing objects, each of (bytes, seconds), and the name of the price book. (None, reason): unknown."""
    if terms.book is None:
        return None, "no price book"
    if terms.store_location is None:
        return None, "unknown store"
    ladder = terms.book.storage_ladder(terms.store_location)
    if not ladder:
        return None, f"no price for storage at {terms.store_location}"
    amounts = [tiered_usd(ladder, count) * Decimal(repr(s)) / MONTH_S for count, s in kept]
    return sum(amounts, Decimal(0)), terms.book.name


def month_of(at_s: float) -> str:
    """Return the calendar month of a unix time in UTC, "2026-11"; "" if it is out of range."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m") if 0 <= at_s < _YEAR_10000_S else ""


def by_month(found: Iterable[Flow], ends: Mapping[int, float], began_s: float) -> dict[str, list[Flow]]:
    """Group flows by the calendar month (UTC, "2026-11") in which their epoch ended, months ascending.

    `ends`: the end of each epoch, unix s. A flow of an epoch without an end belongs to the previous epoch with one,
    or to the start of the run, `began_s`.
    """
    known = sorted(ends)
    months: dict[int, str] = {}
    parts: dict[str, list[Flow]] = {}
    for flow in found:
        if flow.epoch not in months:
            before = [number for number in known if number <= flow.epoch]
            at_s = ends[before[-1]] if before else began_s
            months[flow.epoch] = month_of(at_s)
        parts.setdefault(months[flow.epoch], []).append(flow)
    return dict(sorted(parts.items()))


def _whole(parts: Iterable[float]) -> int:
    return max(0, round(sum(map(Fraction, parts))))  # exact: a float cannot hold a petabyte to the byte


def _priced(
    kind: str,
    what: str,
    pair: tuple[str, str],
    amount_bytes: int | None,
    ladder: Ladder | None,
    used: dict[tuple[str, ...], int],
    price: str,
    month: str,
) -> list[CostLine]:
    """Return a pair's bytes as one line per tier, on top of the bytes already counted in `used`, which is updated."""
    if ladder is None or amount_bytes is None:
        return [CostLine(kind, what, *pair, amount_bytes, "bytes", None, price, month=month)]
    already = used.get(ladder.key, 0)
    used[ladder.key] = already + amount_bytes
    return [
        CostLine(kind, what, *pair, part, "bytes", usd, price, _tier(ladder, tier), month)
        for tier, part, usd in _parts(ladder, amount_bytes, already)
    ]


def _parts(ladder: Ladder, amount_bytes: int, already_bytes: int) -> list[tuple[Price, int, Decimal]]:
    """Return (tier, bytes, dollars) of each tier that contains some of the bytes; the sums are exact.

    A byte on the border of two tiers is listed in the upper one.
    """
    parts: list[tuple[Price, int, Decimal]] = []
    at, end = already_bytes, already_bytes + amount_bytes
    for n, tier in enumerate(ladder.tiers):
        last = n + 1 == len(ladder.tiers)
        edge = end if last else min(end, int(ladder.tiers[n + 1].tier_start * ladder.unit_bytes))
        if edge > at or (last and not parts):
            parts.append((tier, edge - at, tiered_usd(ladder, edge - at, at)))
            at = edge
    return parts


def _tier(ladder: Ladder, tier: Price) -> str:
    return f"{tier.tier_start.normalize():f} {tier.unit}" if len(ladder.tiers) > 1 else ""
