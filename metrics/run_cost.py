"""Cost of a run from measured quantities: the whole run, its steady state, and repricing with another price book."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from cloud.prices.book import PriceBook
from metrics.cost.ledger import KINDS, Ledger, data_lines, egress_lines
from metrics.epochs.scaling import full_scale_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.records import IngressRecord, VmRecord
from metrics.run import Records, RunNumbers
from metrics.store.meta import PriceBookMeta, RunMeta
from metrics.traffic import traffic


class Repriced:
    """View of a run's store with the prices of another price book, for `RunNumbers.of`.

    The book's newest prices apply. The price of a VM that is not in the book is unknown.
    """

    def __init__(self, store: Records, book: PriceBook) -> None:
        self._store = store
        self._book = book

    def records(self, table: str) -> list[Any]:
        """Return the rows of a table, VMs with the book's prices."""
        rows = self._store.records(table)
        return [self._vm(row) for row in rows] if table == "vms" else rows

    def columns(self, table: str, *names: Any) -> dict[str, list[Any]]:
        """Return a table by column, as the store does. Raises ValueError for `vms`, which is repriced by row."""
        if table == "vms":
            raise ValueError("columns() cannot reprice the table vms; use records()")
        store: Any = self._store
        return store.columns(table, *names)

    def run_meta(self) -> RunMeta:
        """Return the run's meta with this price book."""
        book = PriceBookMeta(name=self._book.name, sha256=self._book.sha256, csv=self._book.text)
        return replace(self._store.run_meta(), price_book=book)

    def _vm(self, row: VmRecord) -> VmRecord:
        price = self._book.vm(row.location, row.accelerator, row.use_spot)
        if price is None and row.price_source == self._book.name:
            return row  # the VM's region is unknown; the importer took its price from this book
        if price is None:
            return replace(row, usd_per_h=None, price_source=f"not in {self._book.name}")
        return replace(row, usd_per_h=price.usd, price_source=f"{self._book.name}: {price.source}")


@dataclass(frozen=True)
class Whole:
    """Cost of the whole run, start-up and warm-up included. None: unknown."""

    bill: Ledger
    vm_hours: Decimal
    samples: float

    @property
    def usd_per_vm_h(self) -> Decimal | None:
        """Total dollars / hours of the training VMs."""
        total = self.bill.sum()
        return total / self.vm_hours if total is not None and self.vm_hours else None

    @property
    def usd_per_1m(self) -> Decimal | None:
        """Total dollars / total samples x 10^6."""
        total = self.bill.sum()
        return total / Decimal(repr(self.samples)) * 1_000_000 if total is not None and self.samples else None


@dataclass(frozen=True)
class Steady:
    """Cost of the measured epochs only, with price tiers counted from the first byte. None: unknown."""

    usd_per_vm_h: Mapping[str, Decimal | None]  # by kind: "vm", "egress", "data"
    vm_hours: float
    samples: float
    epochs: int
    unknown: tuple[str, ...]

    @property
    def total_usd_per_vm_h(self) -> Decimal | None:
        """Sum over all kinds."""
        known = [usd for usd in self.usd_per_vm_h.values() if usd is not None]
        return sum(known, Decimal(0)) if len(known) == len(self.usd_per_vm_h) else None

    @property
    def usd_per_1m(self) -> Decimal | None:
        """Dollars / samples x 10^6."""
        per_h = self.total_usd_per_vm_h
        if per_h is None or not self.samples:
            return None
        return per_h * Decimal(repr(self.vm_hours)) / Decimal(repr(self.samples)) * 1_000_000


def whole(run: RunNumbers, samples: float | None = None) -> Whole:
    """Return the run's bill with its VM hours and samples.

    `samples`: default the sum over the epochs; pass it for a run of one VM, which has no epochs.
    """
    seconds = [line.quantity or 0.0 for line in run.bill.lines if line.kind == "vm"]
    hours = Decimal(repr(math.fsum(seconds))) / 3600
    return Whole(run.bill, hours, math.fsum(e.samples for e in run.study) if samples is None else samples)


def steady(run: RunNumbers, ingress: Iterable[IngressRecord]) -> Steady | None:
    """Return dollars per VM hour in the measured epochs. None if no measured epoch has records of peers.

    Each peer of a measured epoch is billed for the epoch's wall time of the swarm. Bytes sent before the first epoch and
    after the last are not counted.
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
    """Return dollars per million samples for VMs and egress, over the measured epochs or of one.

    Training data is left out, because its cost per sample is the same for every run.
    """
    found = steady(run if epoch is None else replace(run, study=(epoch,)), ())
    if found is None or not found.samples:
        return None
    parts = [found.usd_per_vm_h[kind] for kind in ("vm", "egress")]
    known = [float(usd) for usd in parts if usd is not None]
    return sum(known) * found.vm_hours / found.samples * 1e6 if len(known) == len(parts) else None


def not_billed(run: RunNumbers) -> list[str]:
    """List the costs that are in none of the sums, as sentences."""
    found: list[str] = []
    files = run.meta.logs.files or ()
    monitors = sorted({str(f.get("host") or f.get("file")) for f in files if f.get("role") == "monitor"})
    if monitors:
        found.append(
            f"The monitor's VM ({', '.join(monitors)}) is not billed: the logs do not say which instance it was."
        )
    if run.terms.dataset_bytes is None:
        found.append("Storage of the data set is not billed: it exists with or without the run.")
    return found


def _unpriced(run: RunNumbers, vm_usd: Decimal | None) -> list[str]:
    if vm_usd is not None:
        return []
    return [line.price for line in run.bill.lines if line.kind == KINDS[0] and line.usd is None]


def _read(run: RunNumbers, ingress: Iterable[IngressRecord], epochs: set[int]) -> dict[str, float | None]:
    """Return the bytes that each VM read in the given epochs, at full scale."""
    counted: dict[tuple[str, int], int] = {}
    for record in ingress:
        key = (record.vm, record.epoch)
        counted[key] = counted.get(key, 0) + record.network_bytes
    read: dict[str, float | None] = {}
    for epoch in run.study:
        if epoch.epoch not in epochs:
            continue
        for p in epoch.peers:
            count = full_scale_ingress_bytes(
                counted.get((p.vm, epoch.epoch), 0), p.samples, run.terms.bytes_per_sample, run.terms.scales
            )
            sofar = read.get(p.vm, 0.0)
            known = run.ingress.get(p.vm, 0.0) is not None
            read[p.vm] = sofar + count if known and count is not None and sofar is not None else None
    return read
