"""One run of the study report: its figures with intervals, its dollars by kind, its links. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from analysis.replay import RunRow
from cloud.prices.book import PriceBook
from cloud.prices.classes import continent
from cloud.targets import target_of
from experiments.averaging.records import region_of
from experiments.catalog import models
from metrics.cost.ledger import CONTROLLER, data_lines, egress_lines
from metrics.epochs.scaling import Scales
from metrics.epochs.throughput import measured
from metrics.host_load import describe_host
from metrics.more_peers import MorePeers, of_run
from metrics.paper.run import published_run
from metrics.run import RunNumbers
from metrics.stats import Estimate
from metrics.tables import evaluations
from metrics.traffic import traffic

COST_KINDS: dict[str, str] = {
    "vm": "VM",
    "inside": "egress inside a continent",
    "between": "egress between continents",
    "oceania": "egress to or from Oceania",
    "clouds": "egress between clouds",
    "other": "egress to the store, the monitor, elsewhere",
    "data": "training data",
}
"""The kinds of cost, in stacking order."""

_CLASS_KINDS = {
    "same_zone": "inside",
    "same_zone_public": "inside",
    "inter_zone": "inside",
    "inter_region": "inside",
    "inter_continent": "between",
    "oceania": "oceania",
    "between_clouds": "clouds",
}
_PAPER_KINDS = {  # of metrics.paper.basis.PublishedCost
    "vm": ("vm",),
    "inside": ("inside", "regions"),
    "between": ("between",),
    "oceania": ("oceania",),
    "clouds": ("clouds",),
    "data": ("loading",),
}
_SERIES = re.compile(r"\b([A-F])(?:-([A-C]))?-(\d+)\b", re.IGNORECASE)
_HOUR_S = Decimal(3600)


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes and dollars from one location's VMs to another's in a whole run."""

    src: str
    dst: str
    kind: str  # the egress class
    bytes: float
    usd: Decimal | None  # None: the price is unknown


@dataclass(frozen=True)
class StudyRun:
    """A run of the study report. `origin`: "log" (imported), "printed" (published figures), "own" (rented), "emulated".

    `figures`: value, interval and n by key of `metrics.figures`; absent: unknown. The `sps` of a single GPU is its
    `sps_wall`. `usd_per_vm_h`: dollars per VM-hour by kind (COST_KINDS), empty if all are unknown, None for an unknown
    kind. `paper_usd_per_vm_h`: the same by the paper's assumptions (the `published` basis of `orch cost`).
    """

    run_id: str
    name: str
    series: str
    spread: str  # the places of its peers, "US+EU"
    model: str
    accelerator: str
    peers: int
    origin: str
    baseline: bool  # a single VM without a swarm
    figures: Mapping[str, Estimate]
    usd_per_vm_h: Mapping[str, Decimal | None]
    cost_basis: str = ""
    paper_usd_per_vm_h: Mapping[str, Decimal | None] = field(default_factory=dict[str, Decimal | None])
    links: tuple[Link, ...] = ()
    published: Mapping[str, Any] | None = None
    cost_unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    places: tuple[str, ...] = ()  # the VMs' regions, sorted
    tbs: int | None = None
    scales: Scales = field(default_factory=Scales)
    too_busy: str = ""  # why the emulating machine was too busy; "": it was not
    more_peers: MorePeers | None = None  # None: no granularity is known
    evaluation: Mapping[str, Any] | None = (
        None  # the last row of `metrics.tables.evaluations`; None: not evaluated
    )

    @property
    def family(self) -> str:
        """CV, NLP or ASR; "" for other models."""
        known = models().get(self.model)
        return {"vision": "CV", "language": "NLP", "speech": "ASR"}.get(known.kind if known else "", "")

    def value(self, name: str) -> float | None:
        """Return a figure's value; None: unknown."""
        found = self.figures.get(name)
        return found.value if found else None

    @property
    def usd_per_h(self) -> Decimal | None:
        """Dollars per hour of all VMs and kinds; None if one kind is unknown."""
        return self._all(self.usd_per_vm_h)

    @property
    def training_usd_per_h(self) -> Decimal | None:
        """Dollars per hour of VMs and egress, without the data, whose cost per sample is the same for every system."""
        return self._all({kind: usd for kind, usd in self.usd_per_vm_h.items() if kind != "data"})

    @property
    def paper_training_usd_per_h(self) -> Decimal | None:
        """`training_usd_per_h` by the paper's assumptions."""
        return self._all({kind: usd for kind, usd in self.paper_usd_per_vm_h.items() if kind != "data"})

    def _all(self, kinds: Mapping[str, Decimal | None]) -> Decimal | None:
        each = sum_known(kinds.values()) if kinds else None
        return None if each is None else each * self.peers


def study_run(row: RunRow, run: RunNumbers, paper_book: PriceBook | None = None) -> StudyRun:
    """Build a run from its replay row (with the speed-ups) and its numbers.

    `paper_book`: the paper's prices, for dollars by the paper's assumptions too.

    Dollars per hour are those of the measured epochs and exclude start-up: the VMs' price, these epochs' egress over
    their wall time, and the bytes read per hour.
    """
    meta = run.meta
    label = row.label or row.run_id
    spread = spread_of(row.locations.values())
    dollars, why = _dollars(row, run)
    emulated = bool(meta.emulated)
    figures = dict(row.figures)
    if "sps_wall" in figures:
        figures.setdefault("sps", figures["sps_wall"])
    return StudyRun(
        run_id=row.run_id,
        name=label,
        series=series_of(label) or spread,
        spread=spread,
        model=row.model or "unknown model",
        accelerator=", ".join(a.removesuffix(":1") for a in row.accelerators if a) or "unknown GPU",
        peers=row.peers,
        origin="log" if meta.imported else "emulated" if emulated else "own",
        baseline=row.baseline,
        figures=figures,
        usd_per_vm_h=dollars,
        paper_usd_per_vm_h={} if paper_book is None else _paper_dollars(row, run, paper_book),
        cost_basis=f"price book {run.terms.book.name}" if run.terms.book else "no price book",
        links=_links(run),
        published=meta.published if target_of(meta.target).emulates_distance else None,
        cost_unknown=why,
        warnings=row.warnings,
        places=tuple(sorted(_region(place) for place in row.locations.values())),
        tbs=row.tbs,
        scales=run.terms.scales,
        too_busy=describe_host(meta.host.to_json()) if meta.host and meta.host.contended else "",
        more_peers=None if row.baseline else of_run(run),
        evaluation=next(reversed(evaluations(run)), None),
    )


def series_of(label: str) -> str:
    """Return the paper's letter of an experiment: "CV A-2" is A, "geo-c8-nlp" is C, "geo-e-b-4" is E-B; "" for none."""
    found = _SERIES.search(label)
    if found:
        return "-".join(part.upper() for part in found.groups()[:2] if part)
    named = re.search(r"\bgeo-([a-d]|[ef]-[abc]-)(\d+)\b", label)
    return named[1].strip("-").upper() if named else ""


def spread_of(locations: Iterable[str]) -> str:
    """Name the continents of VMs in the paper's order, and the clouds if there are several."""
    places = list(locations)
    clouds = sorted({place.split("/")[0] for place in places if "/" in place})
    found = {continent(place) for place in places}
    order = ("US", "EU", "ASIA", "AUS", "SA")
    words = "+".join(c for c in order if c in found)
    if None in found or not places:
        words = "+".join(part for part in (words, "unknown place") if part)
    return f"{words} ({'+'.join(clouds)})" if len(clouds) > 1 else words


def cost_kind(egress_class: str) -> str:
    """Return the kind of cost (COST_KINDS) of an egress class."""
    return _CLASS_KINDS.get(egress_class, "other")


def distinct(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """Sort runs in natural order of their names. Runs with equal names are named by their ids."""
    count = Counter(run.name for run in runs)
    named = [replace(r, name=r.run_id if count[r.name] > 1 else r.name) for r in runs]
    return sorted(named, key=lambda r: (r.family, r.model, natural(r.name), r.run_id))


def natural(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts A-2 before A-10."""
    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", text) if p]


def _dollars(row: RunRow, run: RunNumbers) -> tuple[dict[str, Decimal | None], tuple[str, ...]]:
    """Dollars per VM-hour by kind in the measured epochs, and the reasons for unknown kinds."""
    why: list[str] = []
    result: dict[str, Decimal | None] = {}
    prices = [vm.usd_per_h for vm in run.vms if vm.slot != CONTROLLER]
    known = [price for price in prices if price is not None]
    result["vm"] = sum(known, Decimal(0)) / len(known) if known and len(known) == len(prices) else None
    if result["vm"] is None:
        why.append("the price of a VM")
    if not row.baseline:
        chosen = measured(run.study)
        numbers = {e.epoch for e in chosen}
        flows = [f for f in run.flows if f.epoch in numbers]
        turns_s = math.fsum(p.wall_s for e in chosen for p in e.peers)
        sent = traffic(flows, chosen, run.terms.scales, [vm.vm for vm in run.vms])
        if row.peers > 1 and (not sent or turns_s <= 0):
            result["inside"] = None
            why.append("egress: none was measured")
        hours = Decimal(repr(turns_s)) / _HOUR_S
        for line in egress_lines(sent, run.terms) if turns_s > 0 else ():
            kind = cost_kind(line.what.removeprefix("egress "))
            before = result.get(kind, Decimal(0))
            if line.usd is None:
                why.append(line.price)
            result[kind] = None if before is None or line.usd is None else before + line.usd / hours
    result["data"] = _data_per_h(row, run)
    if result["data"] is None:
        why.append("training data: the bytes read or their price")
    return result, tuple(dict.fromkeys(why))


def _paper_dollars(row: RunRow, run: RunNumbers, book: PriceBook) -> dict[str, Decimal | None]:
    """Dollars per VM-hour by kind on the `published` basis."""
    rate = row.value("sps_phase_timed" if row.baseline else "sps_epoch_mean")
    found = published_run(run, book, rate, row.peers)
    parts = {
        kind: sum_known(found.usd_per_vm_h(name) for name in names) for kind, names in _PAPER_KINDS.items()
    }
    return {kind: usd for kind, usd in parts.items() if usd is None or usd > 0}


def _data_per_h(row: RunRow, run: RunNumbers) -> Decimal | None:
    """Dollars per VM-hour for the training data, mean over the VMs if prices differ by place."""
    read = row.value("ingress_bytes_per_vm_h")
    if read is None or not run.vms:
        return None
    names = [vm.vm for vm in run.vms if vm.slot != CONTROLLER]
    lines = data_lines(dict.fromkeys(names, read), run.terms)
    total = sum_known(line.usd for line in lines)
    return None if total is None else total / len(names)


def _links(run: RunNumbers) -> tuple[Link, ...]:
    """Bytes and dollars from VM to VM, by pair of regions."""
    names = {vm.vm for vm in run.vms}
    usd = run.bill.by_link_and_class()
    cells: dict[tuple[str, str, str], list[tuple[float, Decimal | None]]] = {}
    for cell in run.matrix:
        if cell.dst in names:
            key = (_region(cell.src_location), _region(cell.dst_location), cell.kind)
            cells.setdefault(key, []).append((cell.bytes, usd.get((cell.src, cell.dst, cell.kind))))
    return tuple(
        Link(*key, math.fsum(b for b, _ in parts), sum_known(u for _, u in parts))
        for key, parts in sorted(cells.items())
    )


def _region(location: str | None) -> str:
    return region_of(location) if location else "unknown"


def sum_known(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Sum amounts; None if one is unknown."""
    total = Decimal(0)
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total
