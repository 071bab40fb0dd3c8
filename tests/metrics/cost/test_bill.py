"""The bill: to the cent where the study can be reproduced, unknown where a price is missing."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import egress, epoch, vm

from cloud.prices.book import load
from metrics.cost.bill import cost_so_far, ledger
from metrics.cost.ledger import CostLine, Ledger, Terms, data_lines, egress_lines, vm_lines
from metrics.epochs.scaling import Scales, full_scale_epochs
from metrics.epochs.throughput import swarm_epochs
from metrics.traffic import Traffic, flows

IOWA, BELGIUM = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"
ADDRESSES = {"10.0.0.1": "a", "10.0.0.2": "b"}
QUIET = [egress("a", 1, "10.0.0.2", "comm", 2, 0), egress("b", 1, "10.0.0.1", "comm", 2, 0)]  # measured: 0


def _terms(**other):
    values = {
        "scales": Scales(),
        "raw_target": None,
        "book": load("study-2023-04"),
        "addresses": ADDRESSES,
        "locations": {"a": IOWA, "b": BELGIUM},
        "bytes_per_sample": 124_000.0,
        "store_location": "b2/us-west-004",
    }
    return Terms(**{**values, **other})


def _line(usd, price="book"):
    return CostLine("vm", "", "a", "", 1.0, "s", usd, price)


def test_vm_hours_from_request_to_end():
    row = vm("a", requested_s=100.0, ended_s=7300.0)
    (line,) = vm_lines([row], 10_000, {}, _terms())
    assert line.usd == Decimal("0.36")
    assert (line.quantity, line.price) == (7200.0, "study")


def test_a_running_vm_is_billed_until_now_and_a_short_one_a_minute():
    running, short = vm_lines([vm("a"), vm("b", ended_s=6.0)], 1800, {}, _terms())
    assert running.usd == Decimal("0.09")
    assert (short.quantity, short.usd) == (60.0, Decimal("0.003"))


def test_epochs_are_billed_at_full_scale():
    (line,) = vm_lines([vm("a", ended_s=100.0)], 0, {"a": [(12.0, 302.0)]}, _terms(scales=Scales(samples=30)))
    assert line.quantity == pytest.approx(88 + 302)


def test_price_of_the_paper_s_transatlantic_gigabyte():
    gib = 2.0**30
    (line,) = egress_lines([Traffic("a", "b", IOWA, BELGIUM, "inter_continent", gib)], _terms())
    assert line.usd == Decimal("0.08")
    (store,) = egress_lines([Traffic("a", "store", IOWA, "b2/us-west-004", "store", gib)], _terms())
    assert store.usd == Decimal("0.12")
    (data,) = data_lines({"a": 1e9}, _terms())
    assert data.usd == Decimal("0.01")


def test_unknown_propagates_with_its_reason():
    bill = Ledger((_line(Decimal(1)), _line(None, "no price for a GPU"), _line(None, "no price for a GPU")))
    assert bill.sum() is None
    assert bill.sum("egress") == 0
    assert bill.unknown == ("no price for a GPU",)
    (line,) = vm_lines([vm("a", usd_per_h=None, price_source="not in the book")], 60, {}, _terms())
    assert line.usd is None
    assert line.price == f"no price for T4:1 spot at {IOWA} (not in the book)"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            egress_lines([Traffic("a", "b", IOWA, BELGIUM, "inter_continent", 1)], _terms(book=None)),
            "no price book",
        ),
        (egress_lines([Traffic("a", "x", IOWA, None, "unknown", 1)], _terms()), "unknown place"),
        (data_lines({"a": None}, _terms(scales=Scales(samples=2))), "unknown sample size"),
        (data_lines({"a": None}, _terms()), "the bytes that a read were not counted"),
        (data_lines({"a": 1.0}, _terms(book=None)), "no price book"),
        (data_lines({"a": 1.0}, _terms(store_location=None)), "unknown store"),
        (data_lines({"a": 1.0}, _terms(store_location="s3/x")), "no price for reading"),
    ],
)
def test_every_missing_price_makes_the_total_unknown(lines, why):
    bill = Ledger((_line(Decimal(5)), *lines))
    assert bill.sum() is None
    assert bill.unknown[0].startswith(why)


def test_the_whole_bill_is_the_sum_of_its_parts():
    vms = [vm("a", ended_s=3600.0), vm("b", location=BELGIUM, ended_s=3600.0)]
    raw = swarm_epochs([epoch("a"), epoch("b")], 0)
    counted = [egress("a", 1, "10.0.0.2", "comm", 2, 2**30), QUIET[1]]
    sent = flows(counted, ADDRESSES, {"a": IOWA, "b": BELGIUM})
    bill = ledger(vms, 0, raw, raw, sent, {"a": 1e9, "b": 0.0}, _terms())
    assert bill.sum() == Decimal("0.36") + Decimal("0.08") + Decimal("0.01")
    assert bill.sum() == sum((bill.sum(k) for k in ("vm", "egress", "data")), Decimal(0))


def test_unmeasured_egress_is_unknown_and_not_free():
    vms = [vm("a", ended_s=3600.0), vm("b", location=BELGIUM, ended_s=3600.0)]
    records = [epoch("a"), epoch("b")]
    raw = swarm_epochs(records, 0)
    bill = ledger(vms, 0, raw, raw, flows(QUIET[:1], ADDRESSES, {}), {"a": 1e9, "b": 0.0}, _terms())
    assert bill.sum("egress") is None
    assert "the egress of b was not measured" in bill.unknown
    assert cost_so_far(vms, records, [], 3600.0, _terms()).spent_usd is None
    met = swarm_epochs([epoch("a")], 0)  # its round had two in it, of whom only this one left records
    assert ledger(vms[:1], 0, met, met, [], {"a": 0.0}, _terms()).sum() is None
    alone = swarm_epochs([epoch("a", group_size=1)], 0)
    assert ledger(vms[:1], 0, alone, alone, [], {"a": 0.0}, _terms()).sum() == Decimal("0.18")


def test_cost_so_far_scales_the_open_epoch_like_the_last_one():
    terms = _terms(scales=Scales(samples=10), raw_target=256)
    records = [epoch("a", 1, 100.0, 10, 2), epoch("b", 1, 100.0, 10, 2)]
    vms = [vm("a"), vm("b", location=BELGIUM)]
    at_end = cost_so_far(vms, records, QUIET, 112.0, terms)
    half_on = cost_so_far(vms, records, QUIET, 118.0, terms)
    assert at_end.usd_per_h == Decimal("0.36")
    extra_s = 2 * 6 * 102 / 12  # both VMs, 6 s of an epoch that grows from 12 s to 102 s
    assert float(half_on.spent_usd - at_end.spent_usd) == pytest.approx(extra_s * 0.18 / 3600)


def test_waiting_vm_is_scaled_for_one_epoch_at_most_and_not_after_the_last():
    terms = _terms(scales=Scales(samples=10), raw_target=256)
    records = [epoch("a", 1, 100.0, 10, 2), epoch("b", 1, 100.0, 10, 2)]
    vms = [vm("a"), vm("b", location=BELGIUM)]
    at_end = cost_so_far(vms, records, QUIET, 112.0, terms).spent_usd
    waited = cost_so_far(vms, records, QUIET, 112.0 + 12 + 60, terms).spent_usd
    assert float(waited - at_end) == pytest.approx(2 * (102 + 60) * 0.18 / 3600)
    over = cost_so_far(vms, records, QUIET, 112.0 + 72, terms, last_epoch=1).spent_usd
    assert float(over - at_end) == pytest.approx(2 * 72 * 0.18 / 3600)


def test_cost_so_far_equals_the_final_bill_when_all_has_ended():
    terms = _terms(scales=Scales(bytes=50, samples=10), raw_target=200)
    records = [epoch(v, k, 100.0 + 12 * k, 10, 2) for v in "ab" for k in (1, 2)]
    sent = [*(egress("a", k, "10.0.0.2", "comm", 2, 10**7) for k in (1, 2)), QUIET[1]]
    vms = [vm("a", ended_s=200.0), vm("b", location=BELGIUM, ended_s=210.0)]
    raw = swarm_epochs(records, 0)
    study = full_scale_epochs(raw, terms.scales, terms.raw_target)
    read = {v: sum(p.samples for e in study for p in e.peers if p.vm == v) * 124_000 for v in "ab"}
    bill = ledger(vms, 0, raw, study, flows(sent, ADDRESSES, terms.locations), read, terms)
    found = cost_so_far(vms, records, sent, 500.0, terms)
    assert found.spent_usd is not None
    assert found.spent_usd == round(bill.sum(), 12)
    assert found.usd_per_h == 0


def test_cost_so_far_of_an_unpriced_vm_is_unknown():
    found = cost_so_far([vm("a"), vm("b", usd_per_h=None)], [], [], 60.0, _terms())
    assert (found.spent_usd, found.usd_per_h) == (None, None)
    assert found.unknown


@given(st.floats(0, 5000), st.floats(0, 5000))
def test_cost_so_far_never_falls_with_time(first, more):
    vms, records = [vm("a"), vm("b")], [epoch("a", 1, 10), epoch("b", 1, 10)]
    terms = _terms(scales=Scales(samples=8), raw_target=256)
    before = cost_so_far(vms, records, QUIET, 22 + first, terms)
    after = cost_so_far(vms, records, QUIET, 22 + first + more, terms)
    assert after.spent_usd >= before.spent_usd
