"""What lost VMs sent after their last record: at the rate of their last epoch, bounded, and marked as an estimate."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.prices.book import load
from metrics.cost.bill import bill_so_far, ledger
from metrics.cost.ledger import Ledger, Terms
from metrics.epochs.scaling import Scales, full_scale_epochs
from metrics.epochs.throughput import swarm_epochs
from metrics.records import EgressRecord, EpochRecord, VmRecord
from metrics.traffic import flows
from tests.metrics.synthetic_runs import egress, epoch, vm

IOWA, BELGIUM, OREGON = (
    "gcp/us-central1/us-central1-a",
    "gcp/europe-west1/europe-west1-b",
    "gcp/us-west1/us-west1-a",
)
ADDRESSES = {"10.0.0.1": "a", "10.0.0.2": "b", "10.0.0.3": "c"}
TERMS = Terms(
    scales=Scales(), raw_target=None, book=load("study-2023-04"), addresses=ADDRESSES,
    locations={"a": IOWA, "b": BELGIUM, "c": OREGON}, bytes_per_sample=124_000.0, store_location="b2/us-west-004",
)  # fmt: skip
GB = 10**9
# Two epochs of 12 s, the last one over at 124 s; in each a GB goes from Iowa to Belgium, half of it in vain.
EPOCHS = [epoch(name, n, 100.0 + 12 * (n - 1)) for name in "ab" for n in (1, 2)]
SENT = [egress("a", n, "10.0.0.2", "comm", 2, GB) for n in (1, 2)] + [
    egress("b", n, "10.0.0.1", "comm", 2, 0) for n in (1, 2)
]
GONE = vm("a", ended_s=130.0, end_cause="preempted")
STAYS = vm("b", location=BELGIUM)


def bill(
    vms: list[VmRecord],
    sent: list[EgressRecord] = SENT,
    terms: Terms = TERMS,
    epochs: list[EpochRecord] = EPOCHS,
    last_epoch: int | None = 100,
    trained_s: dict[str, float] | None = None,
) -> Ledger:
    return bill_so_far(vms, epochs, sent, 200.0, terms, {}, last_epoch, trained_s)


def estimated(found: Ledger) -> list[tuple[str, str, float | None]]:
    return [(line.src, line.dst, line.quantity) for line in found.lines if line.estimated]


def test_lost_vm_is_assumed_to_continue_as_in_its_last_epoch():
    found = bill([GONE, STAYS])
    assert estimated(found) == [("a", "b", GB / 2)]  # 6 s of 12 s
    [line] = [line for line in found.lines if line.estimated]
    assert (line.kind, line.what, line.month) == ("egress", "egress inter_continent", "1970-01")
    measured, guessed = found.measured.sum(), found.estimated_usd
    assert measured is not None
    assert guessed is not None
    assert found.sum() == measured + guessed
    assert float(guessed) == pytest.approx(0.5 * GB / 2**30 * 0.08)
    assert found.by_link() == found.measured.by_link(), (
        "a link's dollars are those of the bytes that were measured"
    )


def test_the_bill_of_a_run_that_has_ended_has_the_same_estimate():
    raw = swarm_epochs(EPOCHS, 0)
    found = flows(SENT, ADDRESSES, TERMS.locations)
    whole = ledger([GONE, STAYS], 200.0, raw, full_scale_epochs(raw, TERMS.scales, None), found, {}, TERMS)
    assert estimated(whole) == [("a", "b", GB / 2)]


@pytest.mark.parametrize("cause", ["preempted", "failed: exit code 1", "terminated"])
def test_no_estimate_if_the_final_record_exists(cause: str):
    ended = replace(GONE, end_cause=cause)
    assert estimated(bill([ended, STAYS])) == [("a", "b", GB / 2)]
    read = [*SENT, egress("a", 2, "10.0.0.2", "leaving", 3.0, 77)]
    assert estimated(bill([ended, STAYS], read)) == []


def test_no_estimate_for_running_finished_or_imported_vms():
    assert estimated(bill([replace(GONE, ended_s=None, end_cause=""), STAYS])) == []
    assert estimated(bill([GONE, STAYS], last_epoch=2)) == []
    assert estimated(bill([replace(GONE, end_cause=""), STAYS], last_epoch=None)) == []


def test_the_estimate_is_at_most_the_plans_ceiling():
    hour = replace(GONE, ended_s=124.0 + 3600.0)
    free = bill([hour, STAYS])
    assert estimated(free) == [("a", "b", 300 * GB)]
    limited = bill([hour, STAYS], terms=replace(TERMS, epoch_ceiling=(Decimal("0.01"), 10.0)))
    assert limited.estimated_usd == pytest.approx(Decimal("3.60"))  # 360 epochs of 10 s
    [(_, _, count)] = estimated(limited)
    assert count == pytest.approx(3.6 / float(free.estimated_usd or 0) * 300 * GB, rel=1e-6)
    short = bill([GONE, STAYS], terms=replace(TERMS, epoch_ceiling=(Decimal("0.01"), 1000.0)))
    assert short.estimated_usd == Decimal("0.01"), "one whole round may have been in flight"


def test_vm_that_trained_without_a_record_is_estimated_from_the_nearest():
    young = vm("c", location=OREGON, requested_s=100.0, ended_s=130.0, end_cause="preempted")
    assert estimated(bill([vm("a"), STAYS, young])) == [], "it never trained"
    found = bill([vm("a"), STAYS, young], trained_s={"c": 127.0})
    assert estimated(found) == [("c", "b", GB / 4)]  # as Iowa did: 3 s of 12 s
    [line] = [line for line in found.lines if line.estimated]
    assert line.usd is not None


def test_first_epoch_has_no_estimate():
    assert estimated(bill([GONE, STAYS], sent=[], epochs=[], trained_s={"a": 100.0})) == []


@given(st.floats(-1e6, 1e6, allow_nan=False), st.floats(0, 1e5))
def test_clock_differences_keep_the_gap_within_the_vm_s_lifetime(off_s: float, life_s: float):
    """The VM's records are by its own clock, its request and its end by the controller's."""
    ends = replace(GONE, requested_s=100.0, ended_s=100.0 + life_s)
    records = [replace(e, began_s=e.began_s + off_s, ended_s=e.ended_s + off_s) for e in EPOCHS]
    found = estimated(bill([ends, STAYS], epochs=records))
    total = sum(count or 0 for _, _, count in found)
    assert 0 <= total <= GB * life_s / 12 + 1


def test_estimate_at_full_scale_is_scaled_like_the_epoch():
    terms = replace(TERMS, scales=Scales(bytes=50, samples=10), raw_target=256)
    measured = sum(
        line.quantity or 0
        for line in bill([GONE, STAYS], terms=terms).lines
        if line.kind == "egress" and line.src == "a" and not line.estimated
    )
    [(_, _, count)] = estimated(bill([GONE, STAYS], terms=terms))
    assert count == pytest.approx(measured / 2 / 2, rel=1e-6)  # of two epochs, half of one
