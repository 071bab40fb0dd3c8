"""A run's dollars on the measured basis: whole, by link, and while it trains steadily; other prices for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from cloud.prices.book import PriceBook
from metrics.cost.ledger import KINDS, Ledger, data_lines, egress_lines
from metrics.epochs.scaling import study_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.records import IngressRecord, VmRecord
from metrics.run import Records, RunNumbers
from metrics.store.meta import PriceBookMeta, RunMeta
from metrics.traffic import traffic


class Repriced:
    """A run's records as if it had been billed by another price book; RunNumbers.of reads it like a store.

    Prices are the book's newest. A VM that the book does not price is unknown.
    """

    def __init__(self, store: Records, book: PriceBook) -> None:
        self._store = store
        self._book = book

    def records(self, table: str) -> list[Any]:
        """The table's rows; VMs with the book's prices."""
        rows = self._store.records(table)
        return [self._vm(row) for row in rows] if table == "vms" else rows

    def columns(self, table: str, *names: Any) -> dict[str, list[Any]]:
        """Any table but `vms`, by column, as the store gives it. Raises ValueError for that one."""
        if table == "vms":
            raise ValueError("the VMs of a run at other prices are read by row")
        store: Any = self._store
        return store.columns(table, *names)

    def run_meta(self) -> RunMeta:
        """The run's meta with the book as its own."""
        book = PriceBookMeta(name=self._book.name, sha256=self._book.sha256, csv=self._book.text)
        return replace(self._store.run_meta(), price_book=book)

    def _vm(self, row: VmRecord) -> VmRecord:
        price = self._book.vm(row.location, row.accelerator, row.use_spot)
        if price is None and row.price_source == self._book.name:
            return row  # its region is unknown, and the importer found its price in this book
        if price is None:
            return replace(row, usd_per_h=None, price_source=f"not in {self._book.name}")
        return replace(row, usd_per_h=price.usd, price_source=f"{self._book.name}: {price.source}")


@dataclass(frozen=True)
class Whole:
    """All of a run, start-up and warm-up included. None: unknown."""

    bill: Ledger
    vm_hours: Decimal
    samples: float

    @property
    def usd_per_vm_h(self) -> Decimal | None:
        """All dollars / hours of the VMs that train."""
        total = self.bill.sum()
        return total / self.vm_hours if total is not None and self.vm_hours else None

    @property
    def usd_per_1m(self) -> Decimal | None:
        """All dollars / all samples x 10^6."""
        total = self.bill.sum()
        return total / Decimal(repr(self.samples)) * 1_000_000 if total is not None and self.samples else None


@dataclass(frozen=True)
class Steady:
    """The measured epochs only, at first-tier prices onward. $ an hour of a VM by kind; None: unknown."""

    usd_per_vm_h: Mapping[str, Decimal | None]  # "vm", "egress", "data"
    vm_hours: float
    samples: float
    epochs: int
    unknown: tuple[str, ...]

    @property
    def total_usd_per_vm_h(self) -> Decimal | None:
        """All kinds together."""
        known = [usd for usd in self.usd_per_vm_h.values() if usd is not None]
        return sum(known, Decimal(0)) if len(known) == len(self.usd_per_vm_h) else None

    @property
    def usd_per_1m(self) -> Decimal | None:
        """Their dollars / their samples x 10^6."""
        per_h = self.total_usd_per_vm_h
        if per_h is None or not self.samples:
            return None
        return per_h * Decimal(repr(self.vm_hours)) / Decimal(repr(self.samples)) * 1_000_000


def whole(run: RunNumbers, samples: float | None = None) -> Whole:
    """The run's bill with what it is divided by. `samples`: of all epochs, unless given (one VM has none)."""
    seconds = [line.quantity or 0.0 for line in run.bill.lines if line.kind == "vm"]
    hours = Decimal(repr(math.fsum(seconds))) / 3600
    return Whole(run.bill, hours, math.fsum(e.samples for e in run.study) if samples is None else samples)


def steady(run: RunNumbers, ingress: Iterable[IngressRecord]) -> Steady | None:
    """Dollars an hour of a VM in the measured epochs; None without one in which somebody's log has a part.

    A VM's time is the swarm's: each measured epoch's wall time for each of its peers. Bytes sent before the
    first epoch and after the last are not in it.
    """
    chosen = [e for e in measured(run.study) if e.peers]
    hours = math.fsum((e.duration_s or 0.0) * len(e.peers) for e in chosen) / 3600
    if not hours:
        return None
    prices = {row.vm: row.usd_per_h for row in run.vms}
    numbers = {e.epoch for e in chosen}
    sent = [f for f in run.flows if f.epoch in numbers and f.phase not in ("joining", "leaving")]
    lines = egress_lines(traffic(sent, run.study, run.terms.scales, [row.vm for row in run.vms]), run.terms)
    lines += [line for line in run.bill.lines if line.kind == "egress" and line.quantity is None]
    lines += data_lines(_read(run, ingress, numbers), run.terms)
    bill = Ledger(tuple(lines))
    vm_usd: Decimal | None = Decimal(0)
    for epoch in chosen:
        for p in epoch.peers:
            usd = prices.get(p.vm)
            if usd is None or vm_usd is None:
                vm_usd = None
            else:
                vm_usd += usd * Decimal(repr(epoch.duration_s or 0.0)) / 3600
    dollars = {"vm": vm_usd, "egress": bill.sum("egress"), "data": bill.sum("data")}
    divisor = Decimal(repr(hours))
    return Steady(
        usd_per_vm_h={kind: None if usd is None else usd / divisor for kind, usd in dollars.items()},
        vm_hours=hours,
        samples=math.fsum(e.samples for e in chosen),
        epochs=len(chosen),
        unknown=tuple(dict.fromkeys((*_unpriced(run, vm_usd), *bill.unknown))),
    )


def usd_per_1m(run: RunNumbers, epoch: SwarmEpoch | None = None) -> float | None:
    """VMs and egress of the measured epochs, or of one, dollars a million samples.

    Without the training data, which costs every run the same by the sample.
    """
    found = steady(run if epoch is None else replace(run, study=(epoch,)), ())
    if found is None or not found.samples:
        return None
    parts = [found.usd_per_vm_h[kind] for kind in ("vm", "egress")]
    known = [float(usd) for usd in parts if usd is not None]
    return sum(known) * found.vm_hours / found.samples * 1e6 if len(known) == len(parts) else None


def not_billed(run: RunNumbers) -> list[str]:
    """What is in no sum although somebody pays for it, as sentences."""
    told: list[str] = []
    files = run.meta.logs.files or ()
    watchers = sorted({str(f.get("host") or f.get("file")) for f in files if f.get("role") == "monitor"})
    if watchers:
        told.append(
            f"The monitor's VM ({', '.join(watchers)}) is not billed: the logs do not say what it was."
        )
    if run.terms.dataset_bytes is None:
        told.append("Keeping the data set is not billed: it is there with or without the run.")
    return told


def _unpriced(run: RunNumbers, vm_usd: Decimal | None) -> list[str]:
    if vm_usd is not None:
        return []
    return [line.price for line in run.bill.lines if line.kind == KINDS[0] and line.usd is None]


def _read(run: RunNumbers, ingress: Iterable[IngressRecord], epochs: set[int]) -> dict[str, float | None]:
    """Bytes read in some epochs by VM, at study scale."""
    counted: dict[tuple[str, int], int] = {}
    for record in ingress:
        key = (record.vm, record.epoch)
        counted[key] = counted.get(key, 0) + record.network_bytes
    read: dict[str, float | None] = {}
    for epoch in run.study:
        if epoch.epoch not in epochs:
            continue
        for p in epoch.peers:
            count = study_ingress_bytes(
                counted.get((p.vm, epoch.epoch), 0), p.samples, run.terms.bytes_per_sample, run.terms.scales
            )
            sofar = read.get(p.vm, 0.0)
            known = run.ingress.get(p.vm, 0.0) is not None
            read[p.vm] = sofar + count if known and count is not None and sofar is not None else None
    return read
