"""A run's dollars on both bases, measured and published, as one JSON object, and the reasons for the difference."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from analysis.replay import RunRow, Store, read_run
from cloud.prices.book import PriceBook
from metrics.cost.ledger import KINDS, Ledger, data_lines
from metrics.paper.basis import EGRESS_KINDS, kind_of
from metrics.paper.run import PublishedRun, published_run
from metrics.readable import usd
from metrics.run import RunNumbers
from metrics.run_cost import Repriced, Steady, Whole, not_billed, steady, whole

BASES = ("measured", "published")
_PARTS = ("vm", *EGRESS_KINDS, "loading")
_NONE = Fraction(0)
_WORDS = {
    "inside": "stay inside a region",
    "regions": "go to another region of the continent",
    "clouds": "go to another cloud",
    "between": "go between continents",
    "oceania": "go to or from Oceania",
}
_SAME = 0.005  # relative difference below which two figures count as equal


def cost_row(
    store: Store, paper_book: PriceBook, book: PriceBook | None = None, bases: tuple[str, ...] = BASES
) -> dict[str, Any]:
    """Compute what `orch cost -o json` prints for a run.

    `book`: prices for both bases, instead of the run's own (measured) and the paper's (published). Raises
    metrics.store.database.StoreError.
    """
    read: Any = store if book is None else Repriced(store, book)
    found = read_run(read)
    run, row = found.run, found.row
    every = whole(run, math.fsum(read.columns("steps")["samples"]) if row.baseline else None)
    even = _alone(run, row) if row.baseline else steady(run, read.records("ingress"))
    sps = row.value("sps_phase_timed" if row.baseline else "sps_epoch_mean")
    theirs = published_run(run, book or paper_book, sps, row.peers)
    logged = len({vm.slot for vm in run.vms})
    partial = row.peers > logged  # the dollars of a peer without a log are missing from every sum
    warnings = [*run.notes, *(f"Measured dollars are unknown: {reason}." for reason in run.bill.unknown)]
    if run.bill.estimated_usd:
        warnings.append(
            f"{usd(run.bill.estimated_usd)} of the measured dollars are estimated: bytes that lost VMs sent after their "
            "last records, at the rate of their last epoch."
        )
    warnings += [f"Published dollars are unknown: {reason}." for reason in theirs.unknown]
    if partial:
        warnings.append(
            f"Only {logged} of {row.peers} VMs have logs: usd_per_1m_samples on the measured basis is unknown, because "
            "the cost of the others is unknown."
        )
    result: dict[str, Any] = {
        "run_id": row.run_id,
        "label": row.label,
        "model": row.model,
        "peers": row.peers,
        **row.ran._asdict(),
    }
    if "measured" in bases:
        result["measured"] = _measured(run, every, even, partial)
    if "published" in bases:
        result["published"] = _published(theirs, book or paper_book, row)
    if set(bases) == set(BASES):
        result["difference"] = _difference(run, row, every, theirs, partial)
    result["warnings"] = [*dict.fromkeys(warnings), *not_billed(run)]
    return result


def _alone(run: RunNumbers, row: RunRow) -> Steady | None:
    """Cost of one hour of a single-VM baseline at its wall-clock rate; None if the rate is unknown."""
    sps = row.value("sps_wall")
    if sps is None or len(run.vms) != 1:
        return None
    (vm,) = run.vms
    lines = data_lines({vm.vm: row.value("ingress_bytes_per_vm_h")}, run.terms)
    bill = Ledger((*(line for line in run.bill.lines if line.kind == "vm" and line.usd is None), *lines))
    return Steady(
        usd_per_vm_h={"vm": vm.usd_per_h, "egress": Decimal(0), "data": bill.sum("data")},
        vm_hours=1.0,
        samples=sps * 3600,
        epochs=0,
        unknown=bill.unknown,
    )


def _measured(run: RunNumbers, every: Whole, even: Steady | None, partial: bool) -> dict[str, Any]:
    book = run.terms.book
    return {
        "price_book": book.name if book else None,
        "price_book_sha256": book.sha256 if book else None,
        "run": {
            "usd": {kind: run.bill.sum(kind) for kind in KINDS} | {"total": run.bill.sum()},
            "estimated_usd": run.bill.estimated_usd,
            "vm_hours": every.vm_hours,
            "samples": every.samples,
            "usd_per_vm_h": every.usd_per_vm_h,
            "usd_per_1m_samples": None if partial else every.usd_per_1m,
        },
        "steady": None
        if even is None
        else {
            "usd_per_vm_h_by_kind": dict(even.usd_per_vm_h),
            "usd_per_vm_h": even.total_usd_per_vm_h,
            "epochs": even.epochs,
            "vm_hours": even.vm_hours,
            "samples": even.samples,
            "usd_per_1m_samples": None if partial else even.usd_per_1m,
            "unknown": list(even.unknown),
        },
        "links": [
            {
                "src": run.slot(line.src),
                "dst": run.slot(line.dst),
                "kind": line.kind,
                "class": line.what.removeprefix("egress ") if line.kind == "egress" else line.what,
                "src_location": run.terms.locations.get(line.src),
                "dst_location": run.terms.locations.get(line.dst),
                "tier": line.tier or None,
                "month": line.month or None,
                "bytes": line.quantity,
                "usd": line.usd,
                "estimated": line.estimated,
            }
            for line in run.bill.lines
            if line.kind in ("egress", "data")
        ],
        "unknown": list(run.bill.unknown),
    }


def _published(cost: PublishedRun, book: PriceBook, row: RunRow) -> dict[str, Any]:
    leaving = [cost.usd_per_vm_h(kind) for kind in EGRESS_KINDS if kind != "inside"]
    known = [usd for usd in leaving if usd is not None]
    return {
        "price_book": book.name,
        "price_book_sha256": book.sha256,
        "usd": {kind: cost.usd(kind) for kind in _PARTS} | {"total": cost.usd()},
        "usd_per_vm_h_by_kind": {kind: cost.usd_per_vm_h(kind) for kind in _PARTS},
        "usd_per_vm_h": cost.usd_per_vm_h(),
        "leaving_usd_per_vm_h": sum(known, Decimal(0)) if len(known) == len(leaving) else None,
        "usd_per_1m_samples": cost.usd_per_1m(),
        "usd_per_1m_samples_without_loading": cost.usd_per_1m(loading=False),
        "sps": cost.sps,
        "sps_basis": "phase timers" if row.baseline else "mean of the epochs' rates",
        "egress_gb_per_vm_h": cost.egress_gb_per_h,
        "loading_gb_per_vm_h": cost.loading_gb_per_h,
        "split": {kind: f"{share.numerator}/{share.denominator}" for kind, share in cost.split.items()},
        "unknown": list(cost.unknown),
    }


def _difference(run: RunNumbers, row: RunRow, every: Whole, theirs: PublishedRun, partial: bool) -> str:
    """Describe both figures in one line, with each differing assumption and its two values."""
    ours, published = None if partial else every.usd_per_1m, theirs.usd_per_1m()
    head = f"measured {usd(ours)}, published {usd(published)} per 1M samples"
    if ours is not None and published:
        bare = usd(theirs.usd_per_1m(loading=False))
        head += f" ({float(ours / published - 1):+.1%}; without loading, as in the paper's Figures 1 and 15, {bare})"
    parts = [*_rates(run, row, every, theirs), *_splits(run, theirs), *_units(run), *_doubled(run)]
    vm = every.bill.sum("vm")
    a = None if vm is None or not every.vm_hours else vm / every.vm_hours
    b = theirs.usd_per_vm_h("vm")
    if a is not None and b is not None and _apart(float(a), float(b)):
        parts.append(f"a VM-hour costs {usd(a)}, in the paper {usd(b)}")
    if not parts and ours is not None and published is not None:
        parts = ["no assumption differs"]
    return ": ".join(part for part in (head, "; ".join(parts)) if part) + "."


def _rates(run: RunNumbers, row: RunRow, every: Whole, theirs: PublishedRun) -> list[str]:
    parts: list[str] = []
    logged = len({vm.slot for vm in run.vms})
    seconds = float(every.vm_hours) * 3600 / logged if logged else 0.0
    rate = every.samples / seconds if seconds else 0.0
    if theirs.sps is None:
        return parts
    wall = row.value("sps_wall") if row.baseline else None
    if wall is not None and _apart(wall, theirs.sps):
        parts.append(f"the GPU reaches {wall:.1f} sps by wall clock, {theirs.sps:.1f} by phase timers")
    basis = theirs.sps if wall is None else wall
    if rate and _apart(rate, basis):
        parts.append(
            f"ours includes start-up and warm-up ({rate:.1f} sps over the VMs' whole time, {basis:.1f} without)"
        )
    return parts


def _splits(run: RunNumbers, theirs: PublishedRun) -> list[str]:
    """Compare the shares of the bytes to other VMs by destination, ours from the records; and name free traffic."""
    places, names = run.terms.locations, {row.vm for row in run.vms}
    sent = [cell for cell in run.matrix if cell.dst in names]
    total = math.fsum(cell.bytes for cell in sent)
    if not total:
        return []
    found: dict[str, float] = dict.fromkeys(EGRESS_KINDS, 0.0)
    for cell in sent:
        kind = kind_of(places.get(cell.src, ""), places.get(cell.dst, ""))
        if kind is None:
            return []
        found[kind] += cell.bytes / total
    parts = [
        f"{found[kind]:.0%} of the bytes {_WORDS[kind]}, in the paper {share.numerator}/{share.denominator}"
        for kind in EGRESS_KINDS
        if _apart(found[kind], float(share := theirs.split.get(kind, _NONE)))
    ]
    free = math.fsum(cell.bytes for cell in sent if cell.kind == "same_zone") / total
    if free:
        parts.append(
            f"traffic inside one zone ({free:.0%} of the bytes) is free, in the paper at the price between zones"
        )
    return parts


def _units(run: RunNumbers) -> list[str]:
    book = run.terms.book
    if book is None:
        return []
    pairs = {(cell.src_location or "", cell.dst_location or "") for cell in run.matrix}
    found = [book.ladder(a, b) for a, b in sorted(pairs)]
    units = sorted({ladder.unit_bytes for ladder in found if ladder and ladder.tiers[-1].usd})
    if not units:
        return []
    names = " or ".join("2^30" if unit == 2**30 else f"{unit / 1e9:g}e9" for unit in units)
    return [f"a GB of egress is {names} bytes, in the paper 1.024e9"]


def _doubled(run: RunNumbers) -> list[str]:
    twice = [vm for vm, row in (run.meta.logs.nic or {}).items() if row.get("doubled")]
    return (
        [f"the doubled counters of {', '.join(sorted(twice))} are halved, in the paper they are not"]
        if twice
        else []
    )


def _apart(a: float, b: float) -> bool:
    return abs(a - b) > _SAME * max(abs(a), abs(b))
