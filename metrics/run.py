"""Everything computed from the records of a run, finished or not. Summary and report read it from here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, Protocol

from cloud.prices.book import PriceBook, PriceBookError
from cloud.prices.classes import INTERNET
from cloud.targets import target_of
from metrics.cost.bill import ledger
from metrics.cost.checkpoints import DEFAULT_KEEP, CheckpointUse
from metrics.cost.ledger import Ledger, Terms
from metrics.cost.lost_work import LostWork, lost_work
from metrics.cost.preemptions import Preemptions, preemptions
from metrics.coverage import Coverage, coverage_of
from metrics.epochs.restarts import training
from metrics.epochs.scaling import Scales, full_scale_epochs, full_scale_ingress_bytes
from metrics.epochs.throughput import SwarmEpoch, swarm_epochs, throughput_epoch_mean
from metrics.events.checkpoints import Checkpoints, checkpoints_of
from metrics.events.evaluation import Evaluation, evaluations_of, of_kept_epochs
from metrics.events.joins import Join, Price, join_costs
from metrics.input_sums import RunInput, run_input
from metrics.learning_curve import LearningCurve, Spending, Target, learning_curve
from metrics.logged_rates import LoggedRate, paper_throughput
from metrics.records import (
    SWARM_LOST,
    CoverageRecord,
    EgressRecord,
    EpochRecord,
    EventRecord,
    IngressRecord,
    InputBatchRecord,
    InputOpRecord,
    InputTraceRecord,
    ProgressRecord,
    SwarmEpochRecord,
    UtilisationRecord,
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
    split_checkpoints,
    switch_pairs,
    tails,
    traffic,
)

# Backblaze B2, where the paper's data came from. The stores of imported logs and our embedded store are billed as this.
_PAPER_STORE = "b2"


class Records(Protocol):
    """The part of `metrics.store.database.RunStore` that is used here."""

    def records(self, table: str) -> list[Any]: ...

    def run_meta(self) -> RunMeta: ...


@dataclass(frozen=True)
class RunNumbers:
    """Epochs (raw and at full scale), traffic, ingress, the bill, and the meters compared with the switch."""

    meta: RunMeta
    terms: Terms
    notes: tuple[str, ...]  # assumptions made, as sentences
    vms: tuple[VmRecord, ...]
    raw: tuple[SwarmEpoch, ...]
    study: tuple[SwarmEpoch, ...]  # at full scale
    flows: tuple[Flow, ...]
    matrix: tuple[Traffic, ...]  # at full scale
    raw_ingress: Mapping[str, int]  # network bytes by VM
    cache_bytes: int
    ingress: Mapping[str, float | None]  # at full scale
    bill: Ledger
    agreement: Agreement | None
    tails: Mapping[tuple[str, str], int]
    preemptions: Preemptions
    joins: tuple[Join, ...]
    lost_work: tuple[LostWork, ...]  # by loss of all peers; part of the bill, not of the other figures
    discarded_epochs: int  # the epochs of lost_work
    utilisation: tuple[UtilisationRecord, ...]  # by VM and time
    coverage_rows: tuple[CoverageRecord, ...]
    # Sums of the input traces, as measured; empty without `data.trace`, and in runs of before them.
    input_ops: tuple[InputOpRecord, ...]
    input_batches: tuple[InputBatchRecord, ...]
    input_traces: tuple[InputTraceRecord, ...]
    discarded_by_vm: Mapping[str, int]  # the same, per VM that took part in them
    checkpoints: Checkpoints
    lost_s: tuple[float, ...]  # unix: when every peer that trained was lost, from the journal
    # Of an imported run's monitor, the first epoch's included; else empty.
    logged_rates: tuple[LoggedRate, ...]
    spending: Spending

    @classmethod
    def of(cls, store: Records) -> RunNumbers:
        """Read a run. Raises metrics.store.database.StoreError if it cannot be read."""
        meta = store.run_meta()
        terms, notes = terms_of(meta)
        vms: list[VmRecord] = store.records("vms")
        epochs: list[EpochRecord] = store.records("epochs")
        progress: list[ProgressRecord] = store.records("progress")
        egress: list[EgressRecord] = store.records("egress")
        ingress: list[IngressRecord] = store.records("ingress")
        watched: list[SwarmEpochRecord] = store.records("swarm_epochs")
        raw = swarm_epochs(epochs, meta.warmup_epochs, progress, terms.raw_target, vms, watched)
        full_scale = full_scale_epochs(raw, terms.scales, terms.raw_target)
        events: list[EventRecord] = store.records("events")
        stored = checkpoints_of(events)
        use = checkpoint_use(stored, meta)
        found = flows(
            egress,
            terms.addresses,
            terms.locations,
            terms.elsewhere,
            public=terms.public,
            internal=terms.internal,
        )
        if stored.stored:
            found = split_checkpoints(found, [(one.vm, one.epoch, one.sent_bytes) for one in stored.stored])
        trained = training(epochs, vms)
        lost = lost_work(trained.restarts, vms, found, terms)
        paid, paid_full_scale = raw, full_scale  # lost epochs are paid for like the others
        if lost:
            both = [*zip(raw, full_scale, strict=True)]
            both += [pair for one in lost for pair in zip(one.raw, one.full_scale, strict=True)]
            both.sort(key=lambda pair: pair[0].ended_s)
            paid, paid_full_scale = [before for before, _ in both], [after for _, after in both]
        matrix = traffic(found, paid_full_scale, terms.scales, [row.vm for row in vms])
        read = {row.vm: 0 for row in vms}
        for record in ingress:
            read[record.vm] = read.get(record.vm, 0) + record.network_bytes
        samples: dict[str, float] = {}
        for epoch in paid_full_scale:
            for p in epoch.peers:
                samples[p.vm] = samples.get(p.vm, 0.0) + p.samples
        study_read = {
            vm: full_scale_ingress_bytes(count, samples.get(vm, 0.0), terms.bytes_per_sample, terms.scales)
            for vm, count in read.items()
        }
        nic = meta.logs.nic
        if nic is not None:  # a VM whose log has no counters did read data
            study_read |= {vm: None for vm in read if vm not in nic}
        now = _end(meta, vms, epochs, progress)
        bill = ledger(
            vms,
            now,
            paid,
            paid_full_scale,
            found,
            study_read,
            terms,
            first_trained_s(progress),
            last_epoch_of(meta),
            use,
        )
        pairs = switch_pairs(meta.switch)
        meter = pair_bytes(found)
        died = tails(meter, pairs, vms) if pairs is not None else {}
        alive = {row.vm for row in vms} - {src for src, _ in died}
        return cls(
            meta=replace(meta, evaluations=of_kept_epochs(meta.evaluations, trained.lost)) if lost else meta,
            terms=terms,
            notes=notes,
            vms=tuple(vms),
            raw=tuple(raw),
            study=tuple(full_scale),
            flows=tuple(found),
            matrix=tuple(matrix),
            raw_ingress=read,
            cache_bytes=sum(r.cache_bytes for r in ingress),
            ingress=study_read,
            bill=bill,
            agreement=agreement(meter, pairs, alive) if pairs is not None else None,
            tails=died,
            preemptions=preemptions(
                vms, events, epochs, store.records("joins"), raw, full_scale, terms.scales, now
            ),
            joins=tuple(join_costs(store.records("joins"), vms, terms.scales, _priced(terms))),
            lost_work=lost,
            discarded_epochs=sum(one.epochs for one in lost),
            discarded_by_vm=Counter(vm for vm, _ in {(r.vm, r.epoch) for r in trained.lost}),
            checkpoints=stored,
            utilisation=tuple(sorted(store.records("utilisation"), key=lambda r: (r.vm, r.began_s))),
            coverage_rows=tuple(store.records("coverage")),
            input_ops=tuple(store.records("input_ops")),
            input_batches=tuple(store.records("input_batches")),
            input_traces=tuple(store.records("input_traces")),
            lost_s=tuple(event.at_s for event in events if event.kind == SWARM_LOST),
            logged_rates=_logged_rates(meta.logs.epoch_rates, watched),
            spending=Spending(
                vms, epochs, egress, ingress, terms, first_trained_s(progress), last_epoch_of(meta), use
            ),
        )

    @cached_property
    def evaluation_rows(self) -> list[Mapping[str, Any]]:
        """Rows of meta's `evaluations` of the weights of `raw`."""
        return list(self.meta.evaluations)

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluated epochs, ascending."""
        return evaluations_of(self.evaluation_rows)

    @cached_property
    def curve(self) -> LearningCurve:
        """The held-out figures over samples, time and dollars."""
        return learning_curve(self.evaluations, self.raw, self.study, self.spending, self.meta.start_epoch)

    @cached_property
    def coverage(self) -> Coverage | None:
        """How often each sample was used, raw. None: unknown, as in runs of before these reports."""
        trained = {peer.vm for epoch in self.raw for peer in epoch.peers if peer.samples > 0}
        trained |= set(self.spending.trained_s)
        return coverage_of(self.coverage_rows, self.meta.training_shards, self.vms, trained)

    @cached_property
    def input(self) -> RunInput | None:
        """Where the time of the input went, raw. None: the run has no trace (`data.trace`)."""
        loads_s = {(p.vm, e.epoch): p.load_s for e in self.raw for p in e.peers}
        return run_input(self.input_ops, self.input_batches, self.input_traces, loads_s)

    @property
    def target(self) -> Target | None:
        """The value of a held-out figure that the experiment is to reach."""
        return Target.of(self.meta.document)

    @property
    def unrecorded(self) -> tuple[int, ...] | None:
        """Epochs that were completed, because later ones or their checkpoint are known, and of which no record is.

        None: unknown, because there is no record at all.
        """
        known = {epoch.epoch for epoch in self.raw}
        lost = {epoch.epoch for one in self.lost_work for epoch in one.raw}
        if self.meta.imported:  # a log may begin anywhere
            return ()
        if not known:
            return None
        last = max(*known, self.checkpoints.epoch)
        return tuple(n for n in range(self.meta.start_epoch + 1, last + 1) if n not in known | lost)

    def epoch_mean(self) -> Estimate | None:
        """Throughput as the paper computes it: mean of the monitor's logged rates, else of the measured epochs' rates."""
        return paper_throughput(self.logged_rates) if self.logged_rates else throughput_epoch_mean(self.study)

    def data_bytes_by_switch(self) -> int | None:
        """IP bytes that the switch forwarded from the store to the VMs, headers included. None without a switch."""
        pairs = switch_pairs(self.meta.switch)
        names = {row.vm for row in self.vms}
        return None if pairs is None else sum(n for (a, b), n in pairs.items() if a == STORE and b in names)

    def slot(self, node: str) -> str:
        """Return the slot of a VM; for other nodes, their name."""
        return next((row.slot for row in self.vms if row.vm == node), node)


def _logged_rates(
    logged: Sequence[tuple[int | None, float | None]] | None, watched: Sequence[SwarmEpochRecord]
) -> tuple[LoggedRate, ...]:
    """Return the rates that the importer stored. Runs of older importers have only the first rate of each epoch."""
    if logged is None:
        return tuple(LoggedRate(r.epoch, r.sps) for r in sorted(watched, key=lambda r: r.epoch))
    return tuple(LoggedRate(epoch, sps) for epoch, sps in logged)


def checkpoint_use(found: Checkpoints, meta: RunMeta) -> CheckpointUse:
    """Return what a run's checkpoints use of the store, as its journal has them."""
    section: Mapping[str, Any] = meta.document.get("checkpoint") or {}
    return CheckpointUse(found.stored, found.restored, int(section.get("keep", DEFAULT_KEEP)))


def terms_of(meta: RunMeta) -> tuple[Terms, tuple[str, ...]]:
    """Return the pricing terms of a run from its meta, and the assumptions made."""
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
        if (store or "").split("/")[0] not in sellers and (len(sellers) == 1 or _PAPER_STORE in sellers):
            store = _PAPER_STORE if _PAPER_STORE in sellers else sellers[0]
            which = "embedded store" if embedded else "store, which the log does not name,"
            notes.append(f"The {which} is billed as {store}, at the prices of {book.name}.")
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
        # bytes of a rented VM to addresses outside the run (such as the controller's machine) leave its cloud
        elsewhere=INTERNET if rented else "",
        public=rented,
        internal=meta.internal_addresses,
        epoch_ceiling=_epoch_ceiling(meta.egress_ceiling),
    )
    return terms, tuple(notes)


def _priced(terms: Terms) -> Price | None:
    """Return the price of bytes between two locations.

    If VMs may reach each other at an internal or a public address, the higher price applies.
    """
    book = terms.book
    return None if book is None else lambda src, dst, count: book.egress(src, dst, count, public=terms.public)


def last_epoch_of(meta: RunMeta) -> int | None:
    """Return the number of the run's last epoch, warm-up included. None: unknown."""
    planned = meta.warmup_epochs + meta.epochs or None
    return planned if planned is None or meta.last_epoch is None else min(planned, meta.last_epoch)


def first_trained_s(progress: Iterable[ProgressRecord]) -> dict[str, float]:
    """Return when each VM first reported samples, unix s."""
    found: dict[str, float] = {}
    for row in progress:
        if row.vm and row.samples > 0:
            found[row.vm] = min(row.at_s, found.get(row.vm, row.at_s))
    return found


def _epoch_ceiling(known: EgressCeiling | None) -> tuple[Decimal, float] | None:
    return (Decimal(known.usd), float(known.raw_epoch_s)) if known else None


def _price_changes(known: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[tuple[float, Decimal]]]:
    """Parse the meta's JSON into (until unix s, USD per hour) by VM."""
    return {vm: [(float(row[0]), Decimal(str(row[1]))) for row in rows] for vm, rows in known.items()}


@lru_cache(maxsize=8)
def _book(text: str, name: str) -> PriceBook:
    """Parse a run's price book. Cached, because the budget guard computes the bill every few seconds."""
    return PriceBook.from_text(text, name)


def _end(
    meta: RunMeta, vms: list[VmRecord], epochs: list[EpochRecord], progress: list[ProgressRecord]
) -> float:
    """Return until when VMs without an end are billed: the run's end, else the time of the last record."""
    if meta.ended_s:
        return float(meta.ended_s)
    times = [row.ended_s or row.requested_s for row in vms]
    times += [r.ended_s for r in epochs] + [r.at_s for r in progress]
    return max(times, default=0.0)
