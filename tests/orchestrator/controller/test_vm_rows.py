"""The rows of VMs used for billing: price changes, and a provider with another clock."""

from dataclasses import replace
from decimal import Decimal

import pytest
from shell_world import PLACE, RUN, Requests

from cloud.provider import Observed
from metrics.records import EventRecord
from metrics.store.database import RunStore
from orchestrator.controller.records import Rows, rises_moved_back
from orchestrator.controller.view import bill_of
from orchestrator.core.events import Fact
from orchestrator.core.journal import begin, created
from orchestrator.core.state import SlotState

NOW_S = 1000.0
VM = "r-a-0"


@pytest.fixture
def store(tmp_path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        fact = created(RUN)
        store.append(
            "events", [EventRecord(0, NOW_S, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
        )
        yield store


@pytest.fixture
def rows(store):
    rows = Rows(store, store.records("events"), Requests())
    rows.journal([Fact("intent", "a", 0, VM, "", "", "", '{"place": 0}')], NOW_S)
    return rows


def listed(usd: str | None = "0.10", requested_s: float = NOW_S, ended_s: float | None = None) -> Observed:
    return Observed(
        VM, "running" if ended_s is None else "terminated", PLACE.location, "10.0.0.1", requested_s, requested_s + 60.0,
        ended_s, "", None, {}, usd_per_h=None if usd is None else Decimal(usd), price_source="the market",
    )  # fmt: skip


def write(rows: Rows, now_s: float, o: Observed) -> None:
    rows.write_vms(begin(RUN), (o,), now_s)


def test_price_changes_are_billed_as_they_happened(store, rows):
    """0.10 for an hour, 0.30 for an hour (seen half an hour late, so since the list before), then 0.10 again."""
    write(rows, NOW_S, listed("0.10"))
    write(rows, NOW_S + 3600.0, listed("0.10"))
    write(rows, NOW_S + 5400.0, listed("0.30"))
    write(rows, NOW_S + 7200.0, listed("0.10"))
    assert bill_of(store, NOW_S + 10800.0).sum("vm") == pytest.approx(Decimal("0.50"))


def test_a_restarted_controller_still_knows_the_prices(store, rows):
    write(rows, NOW_S, listed("0.10"))
    write(rows, NOW_S + 3600.0, listed("0.05"))
    again = Rows(store, store.records("events"), Requests())
    write(again, NOW_S + 7200.0, listed("0.05", ended_s=NOW_S + 7200.0))
    assert bill_of(store, NOW_S + 9999.0).sum("vm") == pytest.approx(Decimal("0.15"))


def test_a_never_listed_vm_is_billed_if_its_request_was_accepted(store, rows):
    """It is ended since the lists lack it, and nobody will ever say when it began and what it cost."""
    held = replace(begin(RUN).slots[0], state=SlotState.BOOTING, vm=VM, confirmed=True)
    state = replace(begin(RUN), slots=(held, begin(RUN).slots[1]))
    rows.journal(
        [Fact("transition", "a", 0, VM, "PROVISIONING", "BOOTING", "the provider took it", "{}")], NOW_S
    )
    rows.write_vms(state, (), NOW_S + 60.0)
    assert store.records("vms") == [], "until it is gone it counts as one that was asked for"
    again = Rows(store, store.records("events"), Requests())
    again.write_vms(begin(RUN), (), NOW_S + 360.0)
    (row,) = store.records("vms")
    assert (row.location, row.end_cause) == (PLACE.location, "never listed by the provider")
    assert bill_of(store, NOW_S + 9999.0).sum("vm") == Decimal("0.018")
    write(again, NOW_S + 720.0, listed("0.10"))
    (row,) = store.records("vms")
    assert (row.ended_s, row.usd_per_h) == (None, Decimal("0.10")), "what a list says is what counts"


def test_a_preemption_that_is_journalled_after_a_vms_end_is_its_cause(store, rows):
    """The provider's list has not changed by then: a provider that says "terminated" is not asked again."""
    ended = listed(ended_s=NOW_S + 60.0)
    write(rows, NOW_S + 60.0, ended)
    assert [row.end_cause for row in store.records("vms")] == ["terminated"]
    data = '{"preempted": "r-a-0"}'
    rows.journal([Fact("transition", "a", 1, "", "TRAINING", "WAITING", "announced", data)], NOW_S + 61.0)
    rows.write_vms(begin(RUN), (ended,), NOW_S + 66.0)
    assert [row.end_cause for row in store.records("vms")] == ["preempted"]


def test_a_vm_that_a_list_lacked_lives_once_it_is_listed_again(store, rows):
    o = listed()
    for listed_now, lives in ((o,), True), ((), False), ((o,), True):
        rows.write_vms(begin(RUN), listed_now, NOW_S + 60.0)
        assert [row.ended_s is None for row in store.records("vms")] == [lives]


def test_a_never_accepted_never_listed_request_is_no_vm(store, rows):
    rows.write_vms(begin(RUN), (), NOW_S + 360.0)
    assert store.records("vms") == []


def test_a_vms_location_is_known_from_its_intent_and_corrected_by_lists(store, rows):
    """After a restart its records may be read before any list: bytes from nowhere would make the whole bill unknown."""
    again = Rows(store, store.records("events"), Requests())
    again.write_vms(begin(RUN), (), NOW_S + 1.0)
    assert store.meta("locations")[VM] == PLACE.location
    write(again, NOW_S + 2.0, replace(listed(), location="gcp/us-central1/us-central1-b"))
    rows.write_vms(begin(RUN), (), NOW_S + 3.0)
    assert store.meta("locations")[VM] == "gcp/us-central1/us-central1-b"


def test_a_rise_without_a_controller_counts_from_the_last_list(store, rows):
    """Nor does what was journalled after that list, while none could be read, say that the price was still the old one."""
    write(rows, NOW_S, listed("0.10"))
    rows.write_clock(NOW_S + 10.0)
    rows.journal([Fact("cause", "b", 0, "", "WAITING", "WAITING", "no capacity", "{}")], NOW_S + 1800.0)
    again = Rows(store, store.records("events"), Requests())
    again.write_vms(begin(RUN), None, NOW_S + 3600.0)  # its first tick: no list yet
    write(again, NOW_S + 3603.0, listed("0.30"))
    assert bill_of(store, NOW_S + 7200.0).sum("vm") == pytest.approx(Decimal("0.60"))


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_fast_provider_clock_is_corrected(store, rows, off_s):
    """Both its beginning and its end are moved, so a running VM costs neither nothing nor an hour too much."""
    write(rows, NOW_S + 30.0, listed(requested_s=NOW_S + off_s))
    assert bill_of(store, NOW_S + 3600.0).sum("vm") == pytest.approx(Decimal("0.10"))
    write(rows, NOW_S + 1800.0, listed(requested_s=NOW_S + off_s, ended_s=NOW_S + off_s + 1800.0))
    assert bill_of(store, NOW_S + 3600.0).sum("vm") == pytest.approx(Decimal("0.05"))


def test_a_vm_requested_after_its_intent_is_billed_from_its_request(store, rows):
    """It stood in line: both clocks agree, and nothing is moved."""
    write(rows, NOW_S + 600.0, listed(requested_s=NOW_S + 500.0))
    (row,) = store.records("vms")
    assert row == replace(row, requested_s=NOW_S + 500.0, ready_s=NOW_S + 560.0)


def test_a_rise_counts_fully_although_our_clock_was_set_forward(store, rows):
    """By the provider's clock 0.10 for an hour, then 0.30 for two; ours is an hour ahead from the rise on."""
    write(rows, NOW_S, listed("0.10"))
    write(rows, NOW_S + 7190.0, listed("0.10"))
    write(rows, NOW_S + 7200.0, listed("0.30"))
    write(rows, NOW_S + 14400.0, listed("0.30", ended_s=NOW_S + 10800.0))
    assert bill_of(store, NOW_S + 14400.0).sum("vm") >= Decimal("0.699")


@pytest.mark.parametrize(
    ("late_s", "moved"), [(0.0, [[100.0, "0.1"], [200.0, "0.3"]]), (50.0, [[100.0, "0.1"], [200.0, "0.3"]]),
                          (90.0, [[10.0, "0.1"], [200.0, "0.3"]]), (-900.0, [[100.0, "0.1"], [200.0, "0.3"]])]
)  # fmt: skip
def test_only_rises_are_moved_back_and_only_for_late_ends(late_s, moved):
    assert rises_moved_back([[100.0, "0.1"], [200.0, "0.3"]], Decimal("0.2"), late_s) == moved
