"""All that a finished or running run's records give, worked out once: what summary and report draw from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol

from cloud.prices.book import PriceBook, PriceBookError
from cloud.prices.classes import INTERNET
from cloud.targets import target_of
from metrics.cost.bill import ledger
from metrics.cost.ledger import Ledger, Terms
from metrics.cost.preemptions import Preemptions, preemptions
from metrics.epochs.restarts import earlier_lives
from metrics.epochs.scaling import Scales, study_epochs, study_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, swarm_epochs, throughput_epoch_mean
from metrics.events.joins import Join, Price, join_costs
from metrics.logged_rates import LoggedRate, study_throughput
from metrics.records import (
    SWARM_LOST,
    EgressRecord,
    EpochRecord,
    EventRecord,
    IngressRecord,
    ProgressRecord,
    SwarmEpochRecord,
    VmRecord,
)
from metrics.stats import Estimate
from metrics.store.meta import EgressCeiling, RunMeta
from metrics.traffic import (
    STORE,
    Agreement,
    Flow,
    Traffic,
    agreement,
    flows,
    pair_bytes,
    switch_pairs,
    tails,
    traffic,
)

# Backblaze B2: where the study's data came from, and what its logs' stores and our embedded one stand for.
_STUDY_STORE = "b2"


class Records(Protocol):
    """What of `metrics.store.database.RunStore` is read here."""

    def records(self, table: str) -> list[Any]: ...

    def run_meta(self) -> RunMeta: ...


@dataclass(frozen=True)
class RunNumbers:
    """Epochs raw and at study scale, traffic, ingress, the bill, meters against the switch."""

    meta: RunMeta
    terms: Terms
    notes: tuple[str, ...]  # what had to be assumed, as sentences
    vms: tuple[VmRecord, ...]
    raw: tuple[SwarmEpoch, ...]
    study: tuple[SwarmEpoch, ...]
    flows: tuple[Flow, ...]
    matrix: tuple[Traffic, ...]  # at study scale
    raw_ingress: Mapping[str, int]  # network bytes by VM
    cache_bytes: int
    ingress: Mapping[str, float | None]  # at study scale
    bill: Ledger
    agreement: Agreement | None
    tails: Mapping[tuple[str, str], int]
    preemptions: Preemptions
    joins: tuple[Join, ...]
    forgotten_epochs: int  # trained before all peers were lost at once: no part of the other figures
    forgotten_by_vm: Mapping[str, int]  # the same, of each VM that took part in them
    lost_s: tuple[float, ...]  # unix: when every peer that trained was lost, as the journal tells
    logged_rates: tuple[
        LoggedRate, ...
    ]  # of an imported run's monitor, the first epoch's included; else empty

    @classmethod
    def of(cls, store: Records) -> RunNumbers:
        """Read a run. Raises metrics.store.database.StoreError when it cannot be read."""
        meta = store.run_meta()
        terms, notes = terms_of(meta)
        vms: list[VmRecord] = store.records("vms")
        epochs: list[EpochRecord] = store.records("epochs")
        progress: list[ProgressRecord] = store.records("progress")
        egress: list[EgressRecord] = store.records("egress")
        ingress: list[IngressRecord] = store.records("ingress")
        watched: list[SwarmEpochRecord] = store.records("swarm_epochs")
        raw = swarm_epochs(epochs, meta.warmup_epochs, progress, terms.raw_target, vms, watched)
        study = study_epochs(raw, terms.scales, terms.raw_target)
        found = flows(
            egress,
            terms.addresses,
            terms.locations,
            terms.elsewhere,
            public=terms.public,
            internal=terms.internal,
        )
        matrix = traffic(found, study, terms.scales, [row.vm for row in vms])
        read = {row.vm: 0 for row in vms}
        for record in ingress:
            read[record.vm] = read.get(record.vm, 0) + record.network_bytes
        samples: dict[str, float] = {}
        for epoch in study:
            for p in epoch.peers:
                samples[p.vm] = samples.get(p.vm, 0.0) + p.samples
        study_read = {
            vm: study_ingress_bytes(count, samples.get(vm, 0.0), terms.bytes_per_sample, terms.scales)
            for vm, count in read.items()
        }
        forgotten = earlier_lives(epochs, vms)
        events: list[EventRecord] = store.records("events")
        nic = meta.logs.nic
        if nic is not None:  # a log without counters read something all the same
            study_read |= {vm: None for vm in read if vm not in nic}
        now = _end(meta, vms, epochs, progress)
        bill = ledger(
            vms, now, raw, study, found, study_read, terms, first_trained_s(progress), last_epoch_of(meta)
        )
        pairs = switch_pairs(meta.switch)
        meter = pair_bytes(found)
        died = tails(meter, pairs, vms) if pairs is not None else {}
        alive = {row.vm for row in vms} - {src for src, _ in died}
        return cls(
            meta=meta,
            terms=terms,
            notes=notes,
            vms=tuple(vms),
            raw=tuple(raw),
            study=tuple(study),
            flows=tuple(found),
            matrix=tuple(matrix),
            raw_ingress=read,
            cache_bytes=sum(r.cache_bytes for r in ingress),
            ingress=study_read,
            bill=bill,
            agreement=agreement(meter, pairs, alive) if pairs is not None else None,
            tails=died,
            preemptions=preemptions(
                vms, events, epochs, store.records("joins"), raw, study, terms.scales, now
            ),
            joins=tuple(join_costs(store.records("joins"), vms, terms.scales, _priced(terms))),
            forgotten_epochs=len({r.epoch for r in forgotten}),
            forgotten_by_vm=Counter(vm for vm, _ in {(r.vm, r.epoch) for r in forgotten}),
            lost_s=tuple(event.at_s for event in events if event.kind == SWARM_LOST),
            logged_rates=_logged_rates(meta.logs.epoch_rates, watched),
        )

    def epoch_mean(self) -> Estimate | None:
        """The study's throughput: the mean of the rates that its monitor logged, else of the measured epochs' own."""
        return study_throughput(self.logged_rates) if self.logged_rates else throughput_epoch_mean(self.study)

    def data_bytes_by_switch(self) -> int | None:
        """IP bytes that the switch saw from the store to the VMs: what they read, with its headers."""
        pairs = switch_pairs(self.meta.switch)
        names = {row.vm for row in self.vms}
        return None if pairs is None else sum(n for (a, b), n in pairs.items() if a == STORE and b in names)

    def slot(self, node: str) -> str:
        """A VM's slot; other nodes' own names."""
        return next((row.slot for row in self.vms if row.vm == node), node)


def _logged_rates(
    logged: Sequence[tuple[int | None, float | None]] | None, watched: Sequence[SwarmEpochRecord]
) -> tuple[LoggedRate, ...]:
    """As the importer kept them; a run imported before it did has each epoch's first rate only."""
    if logged is None:
        return tuple(LoggedRate(r.epoch, r.sps) for r in sorted(watched, key=lambda r: r.epoch))
    return tuple(LoggedRate(epoch, sps) for epoch, sps in logged)


def terms_of(meta: RunMeta) -> tuple[Terms, tuple[str, ...]]:
    """What a run's dollars depend on, from its meta, and what had to be assumed."""
    notes: list[str] = []
    book: PriceBook | None = None
    known = meta.price_book
    try:
        book = _book(known.csv, str(known.name)) if known is not None and known.csv else None
    except PriceBookError as error:
        notes.append(f"The run's price book cannot be read, so prices are unknown: {error}.")
    store = meta.locations.get(STORE)
    rented = target_of(meta.target).rents
    embedded = meta.emulated and not rented
    if book is not None and (embedded or (meta.imported and not store)):
        sellers = book.store_providers()
        if (store or "").split("/")[0] not in sellers and (len(sellers) == 1 or _STUDY_STORE in sellers):
            store = _STUDY_STORE if _STUDY_STORE in sellers else sellers[0]
            which = "embedded store" if embedded else "store, which the log does not name,"
            notes.append(f"The {which} is billed as {store}, as {book.name} prices it.")
    per_sample = meta.model.bytes_per_sample if meta.model else None
    target = meta.raw_target_batch_size
    terms = Terms(
        scales=Scales.of(meta.scales.to_json() if meta.scales else None),
        raw_target=int(target) if target else None,
        book=book,
        addresses=meta.addresses,
        locations=meta.locations,
        bytes_per_sample=None if per_sample in (None, "") else float(per_sample),
        store_location=store,
        dataset_bytes=meta.dataset_bytes,
        price_changes=_price_changes(meta.price_changes),
        # what a rented VM sends to no node of the run (the controller's machine, strangers) leaves its cloud
        elsewhere=INTERNET if rented else "",
        public=rented,
        internal=meta.internal_addresses,
        epoch_ceiling=_epoch_ceiling(meta.egress_ceiling),
    )
    return terms, tuple(notes)


def _priced(terms: Terms) -> Price | None:
    """What bytes from one location to another cost; of VMs that may reach each other at two addresses, at the dearer one."""
    book = terms.book
    return None if book is None else lambda src, dst, count: book.egress(src, dst, count, public=terms.public)


def last_epoch_of(meta: RunMeta) -> int | None:
    """The run's last epoch, warm-up included; None: not known."""
    return meta.warmup_epochs + meta.epochs or None


def first_trained_s(progress: Iterable[ProgressRecord]) -> dict[str, float]:
    """When each VM was first seen to have samples of its own, unix s."""
    found: dict[str, float] = {}
    for row in progress:
        if row.vm and row.samples > 0:
            found[row.vm] = min(row.at_s, found.get(row.vm, row.at_s))
    return found


def _epoch_ceiling(known: EgressCeiling | None) -> tuple[Decimal, float] | None:
    return (Decimal(known.usd), float(known.raw_epoch_s)) if known else None


def _price_changes(known: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[tuple[float, Decimal]]]:
    """(until unix s, USD an hour) by VM, from the meta's JSON."""
    return {vm: [(float(row[0]), Decimal(str(row[1]))) for row in rows] for vm, rows in known.items()}


@lru_cache(maxsize=8)
def _book(text: str, name: str) -> PriceBook:
    """A run's own price book, read once: the budget's guard asks for the bill every few seconds."""
    return PriceBook.from_text(text, name)


def _end(
    meta: RunMeta, vms: list[VmRecord], epochs: list[EpochRecord], progress: list[ProgressRecord]
) -> float:
    """Up to when a VM without an end is billed: the run's end, else the last thing that was recorded."""
    if meta.ended_s:
        return float(meta.ended_s)
    times = [row.ended_s or row.requested_s for row in vms]
    times += [r.ended_s for r in epochs] + [r.at_s for r in progress]
    return max(times, default=0.0)
