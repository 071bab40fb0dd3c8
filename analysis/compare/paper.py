"""The paper's printed figures: centralised systems, runs and costs. Pure after reading the data files.

`references.csv`: centralised systems, each rate with its clock and each price with its basis.
`published_costs.csv`: the paper's dollars per VM-hour as sums of quantity x share x price.
`experiments/published.csv`: the runs with their VMs' places and figures.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path

from analysis.compare.run_figures import StudyRun, cost_kind, series_of, spread_of, sum_known
from cloud.prices.book import PriceBook
from cloud.prices.classes import egress_class
from experiments.catalog import Published, models, published, published_runs
from metrics.figures import FIGURES, PAPER, Figure
from metrics.more_peers import by_rule
from metrics.stats import Estimate, mean_interval

PAPER_BASIS = "study"
ONE_CLOCK = "one clock"
_HERE = Path(__file__).parent
_STORE = "b2/us-west-1"  # Backblaze B2, whose price is the same for every destination
_T4 = "T4"
_TBS = 32768
_SINGLE = {"ConvNextLarge": "CV A-1", "RoBERTaXLM": "NLP A-1"}
_SINGLE_AT = "gcp/us-central1"


@dataclass(frozen=True, slots=True)
class Reference:
    """A centralised system. `clock` of its rate: "wall", "phase-timed" or "unknown" (not stated)."""

    name: str
    model: str
    gpus: str
    usd_per_h: Decimal
    sps: float
    clock: str
    basis: str  # PAPER_BASIS: as published; ONE_CLOCK: recomputed from the paper's logs
    note: str
    source: str

    @property
    def usd_per_1m(self) -> Decimal:
        """Dollars per million samples: $/h / 3600 / sps x 10^6."""
        return self.usd_per_h / 3600 / Decimal(repr(self.sps)) * 1_000_000


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """A part of the cost of one VM-hour: quantity (1 hour, or "GB" of 1.024e9 bytes) x share x price."""

    bar: str
    basis: str  # PAPER_BASIS, or "measured split": billed by the bytes' destinations
    kind: str  # see analysis.compare.run_figures.COST_KINDS
    usd_per_h: Decimal
    source: str


@cache
def references() -> tuple[Reference, ...]:
    """Read references.csv."""
    return tuple(
        Reference(
            r["name"], r["model"], r["gpus"], Decimal(r["usd_per_h"]), float(r["sps"]), r["clock"], r["basis"],
            r["note"], r["source"],
        )
        for r in _rows("references.csv")
    )  # fmt: skip


@cache
def published_costs() -> tuple[PublishedCost, ...]:
    """Read published_costs.csv. Shares are exact until the final division."""
    found: list[PublishedCost] = []
    for r in _rows("published_costs.csv"):
        share = Fraction(r["share"])
        usd = Decimal(r["quantity_per_h"]) * Decimal(r["usd_per_unit"]) * share.numerator / share.denominator
        found.append(PublishedCost(r["bar"], r["basis"], r["kind"], usd, r["source"]))
    return tuple(found)


def single_gpu_sps(model: str, accelerator: str = _T4) -> dict[str, float]:
    """Return the paper's rate of a single GPU by basis: {"study": 80.8, "one clock": 36.8}; {} if it has none."""
    return {r.basis: r.sps for r in references() if r.model == model and r.gpus == f"1 {accelerator}"}


def run_name(row: Published) -> str:
    """Return the name of a published run as in the paper's index: "C-8 NLP" is "NLP C-8"."""
    number, _, family = row.run.partition(" ")
    return f"{family} {number}"


def printed_figure(row: Published, figure: Figure) -> float | None:
    """Return a figure of the paper in our unit; None: not published."""
    value = getattr(row, figure.paper_column) if figure.paper_column else None
    return None if value is None else value * figure.paper_factor


def printed_runs(book: PriceBook, logs: Collection[StudyRun] = ()) -> list[StudyRun]:
    """Return the published runs with known epochs, as printed, without those that are among `logs`.

    A run is among `logs` by name ("CV A-2"), by the published figures that the log's importer found, or by model, GPU,
    target batch size and places. Dollars: the printed egress in equal parts to every other VM and the samples' bytes
    from the store, at the book's prices (first tiers).
    """
    found = [
        _printed(row, row.sps, book)
        for row in published_runs().values()
        if row.sps is not None and row.epoch_s is not None and row.same_as is None
    ]
    found += [_printed_single(name, model, book) for model, name in _SINGLE.items()]
    names = {_published_name(run) for run in logs}
    same = {_identity(run) for run in logs}
    return [run for run in found if run.name not in names and _identity(run) not in same]


def _identity(run: StudyRun) -> tuple[object, ...]:
    return run.model, run.accelerator, None if run.baseline else run.tbs, run.places, run.baseline


def _published_name(run: StudyRun) -> str:
    """The paper's name of a run if its importer found one, otherwise the run's own name."""
    known = published(str((run.published or {}).get("experiment", "")))
    return run_name(known) if known else run.name


def _printed_single(name: str, model: str, book: PriceBook) -> StudyRun:
    """The paper's single GPU, whose rates are known on both clocks."""
    rates = single_gpu_sps(model)
    dollars, why = _dollars(model, [_SINGLE_AT], rates[ONE_CLOCK], 0.0, book)
    return StudyRun(
        run_id=f"printed {name}",
        name=name,
        series=series_of(name),
        spread=spread_of([_SINGLE_AT]),
        model=model,
        accelerator=_T4,
        peers=1,
        origin="printed",
        baseline=True,
        figures={
            "sps": Estimate(rates[ONE_CLOCK], None, None, 0),
            "sps_phase_timed": Estimate(rates[PAPER_BASIS], None, None, 0),
        },
        usd_per_vm_h=dollars,
        paper_usd_per_vm_h={"vm": dollars["vm"]},
        cost_basis=f"price book {book.name}",
        cost_unknown=why,
        places=(_SINGLE_AT,),
        tbs=_TBS,
    )


def _printed(row: Published, sps_mean: float, book: PriceBook) -> StudyRun:
    """`sps_mean`: the row's published rate."""
    name = run_name(row)
    places = [place for place, count in row.vms_by_location for _ in range(count)]
    spread, epochs = mean_interval(row.epoch_sps), row.epochs or 0
    sps = Estimate(sps_mean, spread.low if spread else None, spread.high if spread else None, epochs)
    one = single_gpu_sps(row.model)
    values = {key: printed_figure(row, FIGURES[key]) for key in PAPER}
    figures = {key: Estimate(value, None, None, epochs) for key, value in values.items() if value is not None}
    figures |= {"sps": sps, "sps_epoch_mean": sps}
    for key, basis in (("speedup", ONE_CLOCK), ("speedup_phase_timed", PAPER_BASIS)):
        if basis in one:
            low, high = (None if end is None else end / one[basis] for end in (sps.low, sps.high))
            figures[key] = Estimate(sps.value / one[basis], low, high, sps.n)
    calc_s, comm_s = values["calc_s"], values["comm_s"]
    egress = values["egress_bytes_per_vm_epoch"]
    hourly = None if egress is None or row.epoch_s is None else egress * 3600 / row.epoch_s
    dollars, why = _dollars(row.model, places, sps_mean, hourly, book)
    return StudyRun(
        run_id=f"printed {name}",
        name=name,
        series=series_of(name),
        spread=spread_of(places),
        model=row.model,
        accelerator=_T4,
        peers=row.vms,
        origin="printed",
        baseline=False,
        figures=figures,
        usd_per_vm_h=dollars,
        paper_usd_per_vm_h={
            part.kind: part.usd_per_h
            for part in published_costs()
            if part.basis == PAPER_BASIS and part.bar == f"{name}, GC VM"
        },
        cost_basis=f"price book {book.name}, egress in equal parts to every other VM",
        cost_unknown=why,
        more_peers=by_rule(calc_s / comm_s, row.vms) if calc_s and comm_s else None,
        places=tuple(sorted(places)),
        tbs=_TBS,
    )


def _dollars(
    model: str, places: list[str], sps: float, egress_bytes_per_h: float | None, book: PriceBook
) -> tuple[dict[str, Decimal | None], tuple[str, ...]]:
    """Dollars per VM-hour by kind, mean over the VMs, and the reasons for unknown kinds.

    `egress_bytes_per_h` of a VM is split equally over the others; None: unknown.
    """
    vms = len(places)
    rents = [price.usd if (price := book.vm(place, _T4, True)) else None for place in places]
    each: dict[str, list[Decimal | None]] = {"vm": rents, "data": []}
    for k, src in enumerate(places):
        for j, dst in enumerate(places):
            if j != k:
                hourly = egress_bytes_per_h
                usd = None if hourly is None else book.egress(src, dst, round(hourly / (vms - 1)))
                each.setdefault(cost_kind(egress_class(src, dst) or ""), []).append(usd)
    size = models()[model].bytes_per_sample
    for place in places:
        usd = None if size is None else book.store_egress(_STORE, place, round(sps / vms * size * 3600))
        each["data"].append(usd)
    totals = {kind: sum_known(parts) for kind, parts in each.items()}
    why = [f"{book.name} has no price for: {kind}" for kind, total in totals.items() if total is None]
    return {kind: None if t is None else t / vms for kind, t in totals.items()}, tuple(why)


def _rows(name: str) -> Iterable[dict[str, str]]:
    with (_HERE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
