"""A run's dollars on both bases: from the paper's logs to the cent, and from synthetic records."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

import pytest
from made_up_run import write_run

from analysis.costs import cost_row
from analysis.sources import opened
from cloud.prices.book import PriceBook, load
from metrics.paper.basis import usd_per_million, vm_usd_per_h
from metrics.paper.run import published_run
from metrics.records import ProgressRecord, VmRecord
from metrics.run import RunNumbers
from metrics.run_cost import Repriced, steady, whole
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta

STUDY = load("study-2023-04")


@pytest.fixture(scope="module")
def computed():
    """The costs of the logs, computed once."""
    return {}


@pytest.fixture
def rows(paper_traces, computed):
    """Label: what `orch cost` prints."""
    if not computed:
        with opened([paper_traces], book=STUDY) as found:
            assert not found.problems
            for source in found.runs:
                with RunStore.open_reader(source.folder / "run.db") as store:
                    computed[source.label] = cost_row(store, STUDY)
    return computed


@pytest.mark.parametrize(("label", "gb", "usd"), [("CV A-8", "18.44", "3.09"), ("NLP A-8", "96.86", "4.44")])
def test_eight_t4_with_their_own_egress(rows, label, gb, usd):
    theirs = rows[label]["published"]
    assert theirs["egress_gb_per_vm_h"].quantize(Decimal("0.01")) == Decimal(gb)
    assert theirs["usd_per_1m_samples_without_loading"].quantize(Decimal("0.01")) == Decimal(usd)
    assert theirs["split"] == {"inside": "1/1"}
    assert theirs["sps_basis"] == "mean of the epochs' rates"


@pytest.mark.parametrize(("label", "third"), [("CV A-4", "0.029"), ("NLP A-4", "0.191")])
def test_paper_charges_eight_t4_the_internal_third_of_four(rows, label, third):
    inside = rows[label]["published"]["usd_per_vm_h_by_kind"]["inside"]
    assert (inside / 3).quantize(Decimal("0.001")) == Decimal(third)


def test_the_d_runs_egress_is_a_4_s(rows):
    assert rows["CV A-4"]["published"]["egress_gb_per_vm_h"].quantize(Decimal("0.0001")) == Decimal("8.6570")


@pytest.mark.parametrize(
    ("label", "timed", "wall"), [("CV A-1", "0.619", "1.36"), ("NLP A-1", "0.24", "0.36")]
)
def test_one_t4_on_both_clocks(rows, label, timed, wall):
    theirs, ours = rows[label]["published"], rows[label]["measured"]["steady"]
    assert theirs["sps_basis"] == "phase timers"
    assert theirs["usd_per_1m_samples_without_loading"].quantize(Decimal(timed)) == Decimal(timed)
    rate = ours["samples"] / ours["vm_hours"] / 3600
    assert usd_per_million(ours["usd_per_vm_h_by_kind"]["vm"], rate).quantize(Decimal("0.01")) == Decimal(
        wall
    )
    assert "by wall clock" in rows[label]["difference"]


def test_paper_bills_too_few_transatlantic_bytes(rows):
    row = rows["NLP B-8"]
    assert row["published"]["split"] == {"inside": "12/13", "between": "1/13"}
    assert "57% of the bytes go between continents, in the paper 1/13" in row["difference"]
    usd = row["measured"]["run"]["usd"]
    assert Fraction(usd["total"]) == sum(Fraction(usd[kind]) for kind in ("vm", "egress", "data"))
    by_link = sum(Fraction(link["usd"]) for link in row["measured"]["links"])
    assert by_link == Fraction(usd["egress"]) + Fraction(usd["data"])
    assert row["published"]["leaving_usd_per_vm_h"] == row["published"]["usd_per_vm_h_by_kind"]["between"]


def test_steady_costs_more_per_hour_and_less_per_sample(rows):
    for label, row in rows.items():
        if not label.endswith("A-1"):
            ours = row["measured"]
            assert ours["steady"]["epochs"] == 2
            assert ours["steady"]["usd_per_vm_h"] > ours["run"]["usd_per_vm_h"]
            assert ours["steady"]["usd_per_1m_samples"] < ours["run"]["usd_per_1m_samples"]


def test_every_run_of_the_logs_has_every_figure(rows):
    assert len(rows) == 20
    for row in rows.values():
        assert row["measured"]["unknown"] == row["published"]["unknown"] == []
        warnings = " ".join(row["warnings"])
        assert "data set is not billed" in warnings
        assert ("monitor's VM" in warnings) == (row["peers"] > 1)
    json.dumps(rows["CV B-2"], default=float)


@pytest.fixture
def own(tmp_path):
    """Eight peers on four continents, two per continent, in zones, at full scale."""
    write_run(tmp_path)
    with RunStore.open_reader(tmp_path / "run.db") as store:
        yield store


def test_own_run_on_the_paper_s_basis_has_its_split(own):
    row = cost_row(own, STUDY)
    assert row["published"]["split"] == {"inside": "2/5", "between": "3/10", "oceania": "3/10"}
    assert row["published"]["usd_per_vm_h_by_kind"]["vm"] == Decimal("0.180")
    assert "14% of the bytes stay inside a region, in the paper 2/5" in row["difference"]
    assert "traffic inside one zone (14% of the bytes) is free" in row["difference"]
    run = RunNumbers.of(own)
    sent = sum(line.quantity for line in run.bill.lines if line.kind == "egress")
    seconds = sum(line.quantity for line in run.bill.lines if line.kind == "vm")
    assert float(row["published"]["egress_gb_per_vm_h"]) == pytest.approx(sent / 1.024e9 / seconds * 3600)


def test_steady_costs_by_hand(own):
    run = RunNumbers.of(own)
    found = steady(run, own.records("ingress"))
    epochs = [e for e in run.study if e.epoch > 1]
    hours = sum(e.duration_s * 8 for e in epochs) / 3600
    assert found.vm_hours == pytest.approx(hours)
    assert float(found.usd_per_vm_h["vm"]) == pytest.approx(0.18)
    samples = sum(e.samples for e in epochs)
    assert float(found.usd_per_vm_h["data"]) == pytest.approx(samples * 1e5 / 1e9 * 0.01 / hours)
    share = len(epochs) / len(run.study)  # all epochs send alike
    assert float(found.usd_per_vm_h["egress"]) == pytest.approx(float(run.bill.sum("egress")) * share / hours)
    rate = samples / hours / 3600 * 8
    by_formula = float(found.total_usd_per_vm_h) * 8 / 3600 / rate * 1e6
    assert float(found.usd_per_1m) == pytest.approx(by_formula)


def test_other_book_reprices_without_changing_the_run(own):
    text = STUDY.text.replace(",0.180,", ",0.360,")
    dearer = PriceBook.from_text(text, "mine.csv")
    before, after = cost_row(own, STUDY)["measured"], cost_row(own, STUDY, dearer)["measured"]
    assert after["run"]["usd"]["vm"] == 2 * before["run"]["usd"]["vm"]
    assert after["run"]["usd"]["egress"] == before["run"]["usd"]["egress"]
    assert (after["price_book"], after["price_book_sha256"]) == ("mine.csv", dearer.sha256)
    assert RunNumbers.of(own).terms.book.name == "study-2023-04"
    with pytest.raises(ValueError, match="cannot reprice the table vms"):
        Repriced(own, dearer).columns("vms")


def test_missing_vm_price_makes_both_bases_unknown(own):
    lines = [line for line in STUDY.text.splitlines() if ",vm," not in line]
    row = cost_row(own, STUDY, PriceBook.from_text("\n".join(lines) + "\n", "bare.csv"))
    assert row["measured"]["run"]["usd"]["total"] is None
    assert row["measured"]["run"]["usd"]["egress"] is not None
    assert row["measured"]["steady"]["usd_per_vm_h"] is None
    assert any(text.startswith("no price for T4:1 spot") for text in row["measured"]["steady"]["unknown"])
    assert row["published"]["usd_per_vm_h"] is row["published"]["usd_per_1m_samples"] is None
    assert any("no price in bare.csv for T4:1" in text for text in row["warnings"])
    assert row["difference"].startswith("measured unknown, published unknown per 1M samples")


def test_single_basis(own):
    assert "published" not in cost_row(own, STUDY, bases=("measured",))
    row = cost_row(own, STUDY, bases=("published",))
    assert "measured" not in row
    assert "difference" not in row


class _Log:
    """An imported run of two VMs in two clouds, one of them without counters."""

    def __init__(self, **imported):
        nic = {"seconds": 1800.0, "sent_bytes": 512_000_000, "received_bytes": 2_048_000_000}
        self._meta = {
            "run_id": "x-1",
            "locations": {"a": "gcp/us-central1", "b": "aws/us-west-2", "store": "b2/us-west-1"},
            "price_book": {"name": STUDY.name, "sha256": STUDY.sha256, "csv": STUDY.text},
            "imported": {"nic": {"a": nic}} | imported,
        }

    places: ClassVar = {"a": "gcp/us-central1", "b": "aws/us-west-2"}

    def records(self, table):
        if table != "vms":
            return []
        return [
            VmRecord(v, v, 0, p, "", "T4:1", True, Decimal("0.2"), STUDY.name, v, 0.0, 1.0, 3600.0, "")
            for v, p in self.places.items()
        ]

    def columns(self, table, only=()):
        return {name: [] for name in ("vm", "step", "samples", "peers", "group_size", *only)}

    def run_meta(self):
        return RunMeta.from_json(self._meta)


def test_paper_basis_keeps_doubled_counters_and_fills_missing_ones():
    raw = {"seconds": 1800.0, "sent_bytes": 512_000_000, "received_bytes": 2_048_000_000,
           "raw_sent_bytes": 1_024_000_000, "raw_received_bytes": 4_096_000_000, "doubled": True}  # fmt: skip
    run = RunNumbers.of(_Log(nic={"a": raw}))
    found = published_run(run, STUDY, 10.0, 2)
    assert (found.egress_gb_per_h, found.loading_gb_per_h) == (2, 6)
    assert found.vms["a"] == vm_usd_per_h(
        Decimal("0.180"), Decimal(2), [("clouds", 1, Decimal("0.01"))], Decimal(6)
    )
    assert found.hours == {"a": Decimal("0.5"), "b": Decimal(1)}
    assert found.usd("vm") == Decimal("0.180") / 2 + Decimal("0.395")
    assert run.bill.unknown == ("the bytes that b read were not counted",)
    row = cost_row(_Log(nic={"a": raw}), STUDY)
    assert "the doubled counters of a are halved" in row["difference"]


def test_a_log_without_counters_has_vm_dollars_only():
    row = cost_row(_Log(nic={}), STUDY)
    assert row["measured"]["run"]["usd"]["vm"] == Decimal("0.4")
    assert row["measured"]["run"]["usd"]["data"] is None
    assert row["published"]["usd"]["vm"] == Decimal("0.575")
    assert row["published"]["usd"]["total"] is None
    assert "the bytes that the VMs sent were not counted" in row["published"]["unknown"]


def test_run_without_samples_has_no_price_per_sample():
    run = RunNumbers.of(_Log())
    assert whole(run).usd_per_1m is None
    assert whole(run).vm_hours == 2


class _OneLog(_Log):
    """A single VM's log of a swarm of two, at an unknown place."""

    places: ClassVar = {"a": "unknown"}

    def records(self, table):
        if table == "progress":
            return [ProgressRecord(float(k), "", 1, 1, 1.0, 2, None) for k in range(3)]
        return super().records(table)

    def columns(self, table, only=()):
        rows = {"vm": ["", "", ""], "peers": [2, 2, 2]} if table == "progress" else {}
        return super().columns(table, only) | rows


def test_single_log_of_a_swarm_leaves_destinations_and_dollars_unknown():
    row = cost_row(_OneLog(), STUDY)
    assert row["peers"] == 2
    theirs = row["published"]
    assert theirs["split"] == {}
    assert theirs["usd_per_vm_h_by_kind"]["vm"] == Decimal("0.2")  # the importer's, by the same book
    assert theirs["usd_per_vm_h"] is None
    assert "unknown place" in " ".join(theirs["unknown"])
    assert row["measured"]["run"]["usd_per_1m_samples"] is None
    assert "Only 1 of 2 VMs have logs" in " ".join(row["warnings"])
    assert row["difference"] == "measured unknown, published unknown per 1M samples."


def test_other_book_keeps_the_imported_price():
    (kept,) = Repriced(_OneLog(), STUDY).records("vms")
    assert kept.usd_per_h == Decimal("0.2")
    (other,) = Repriced(_OneLog(), load("list-2026-11")).records("vms")
    assert (other.usd_per_h, other.price_source) == (None, "not in list-2026-11.csv")
