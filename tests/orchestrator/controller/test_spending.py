"""Input of the budget guard, computed by hand from the rows of a made-up run."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_run import write_run

from metrics.store.database import RunStore
from orchestrator.controller.spending import spent_of
from orchestrator.controller.view import bill_of
from orchestrator.core.journal import begin
from orchestrator.core.state import Place, RunSpec, RunState, Slot, SlotSpec, SlotState

NOW_S = 1_700_000_500.0
SPEC = RunSpec("geo", (), metering_period_s=30.0, decision_s=6.0, teardown_s=324.0)  # a tenth of an hour
STATE = begin(SPEC)


@pytest.fixture
def store(tmp_path):
    write_run(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        yield store


def test_rates_are_of_current_vms_and_the_most_expensive_epoch(store):
    first, second = store.records("vms")[:2]
    for row in store.records("vms"):
        store.upsert_vm(replace(row, ended_s=row.requested_s + 10.0))
    store.upsert_vm(replace(first, ended_s=None, usd_per_h=Decimal("0.21")))
    store.upsert_vm(replace(second, ended_s=None, usd_per_h=Decimal("0.18")))
    told = spent_of(store, NOW_S, STATE)
    bill = bill_of(store, NOW_S)
    assert told.spent_usd == bill.sum() != 0
    assert told.usd_per_h == Decimal("0.39")
    sent: dict[int, int] = {}
    for row in store.records("egress"):
        sent[row.epoch] = sent.get(row.epoch, 0) + row.bytes
    ends = [max(e.ended_s for e in store.records("epochs") if e.epoch == n) for n in range(1, 6)]
    plan = store.meta("emulation", {})
    stretch = plan["study_epoch_s"] / plan["epoch_s"] if plan else 1.0
    epoch_s = stretch * (ends[-1] - ends[0]) / 4
    traffic = bill.sum("egress") + bill.sum("data")
    dearest = traffic * max(sent.values()) / sum(sent.values())
    in_flight = dearest * (1 + Decimal("360") / Decimal(str(epoch_s)))
    assert told.egress_usd_per_h == pytest.approx(in_flight * 10, rel=Decimal("0.01"))


def test_without_an_expected_epoch_the_finished_ones_count(store):
    """Rented VMs with accelerators that nobody measured: nothing is scaled there."""
    store.set_meta("emulation", {"study_epoch_s": None, "epoch_s": None})
    told = spent_of(store, NOW_S, STATE)
    store.set_meta("emulation", {"study_epoch_s": 12.0, "epoch_s": 12.0})
    assert told == spent_of(store, NOW_S, STATE)
    assert told.egress_usd_per_h is not None
    assert told.egress_usd_per_h > 0


def test_unknown_spending_is_unknown(store):
    row = store.records("vms")[0]
    store.upsert_vm(replace(row, ended_s=None, usd_per_h=None))
    told = spent_of(store, NOW_S, STATE)
    assert (told.spent_usd, told.usd_per_h) == (None, None)


def test_before_the_first_epoch_no_traffic_is_known(tmp_path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        told = spent_of(store, NOW_S, STATE)
    assert (told.spent_usd, told.usd_per_h, told.egress_usd_per_h) == (0, 0, 0)


def place(usd: str | None, ceiling: str | None = None) -> Place:
    priced = [None if x is None else Decimal(x) for x in (usd, ceiling)]
    return Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, priced[0], "book", priced[1])


def asked(*slots: tuple[Place, Slot]) -> RunState:
    spec = replace(SPEC, slots=tuple(SlotSpec(slot.name, (where,)) for where, slot in slots))
    return RunState(spec, tuple(slot for _, slot in slots))


def asks(name: str, for_s: float, state: SlotState = SlotState.PROVISIONING) -> Slot:
    return Slot(name, state, vm=f"geo-{name}-0", since_s=NOW_S - for_s)


def test_a_launch_in_progress_counts_at_its_ceiling_from_its_request(store):
    before = spent_of(store, NOW_S, STATE).spent_usd
    dear, cheap = place("0.20", "0.30"), place("0.10")
    state = asked(
        (dear, asks("z-0", 1800.0)), (cheap, asks("z-1", 360.0)), (cheap, asks("z-2", 900.0, SlotState.BOOTING)),
        (cheap, asks("z-3", -5.0)),  # a clock that is behind
    )  # fmt: skip
    assert spent_of(store, NOW_S, state).spent_usd == before + Decimal("0.15") + Decimal("0.01") + Decimal(
        "0.025"
    )


def test_transient_refusals_cost_nothing_until_the_retry(store):
    """An hour of refusals, and the last one a minute ago; what may be there counts from its request on."""
    before = spent_of(store, NOW_S, STATE).spent_usd
    again = replace(asks("z-0", 60.0), refusals=9, retry_at_s=NOW_S + 30.0)
    assert spent_of(store, NOW_S, asked((place("9.00"), again))).spent_usd == before
    maybe = replace(asks("z-0", 1800.0), refusals=9, retry_at_s=NOW_S + 30.0, ambiguous=True)
    assert spent_of(store, NOW_S, asked((place("9.00"), maybe))).spent_usd == before + Decimal("4.5")


def test_a_listed_vm_counts_once(store):
    row = store.records("vms")[0]
    slot = Slot("z-0", SlotState.PROVISIONING, vm=row.vm, since_s=NOW_S - 3600.0)
    told = spent_of(store, NOW_S, asked((place("9.00"), slot)))
    assert told.spent_usd == spent_of(store, NOW_S, STATE).spent_usd


def test_a_launch_at_an_unknown_price_makes_the_sum_unknown(store):
    assert spent_of(store, NOW_S, asked((place(None), asks("z-0", 10.0)))).spent_usd is None


@given(st.lists(st.tuples(st.decimals(0, 40, places=4), st.floats(0, 1e5)), max_size=6))
@settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_launches_in_progress_add_at_most_their_ceilings(store, launches):
    state = asked(*((place(str(usd)), asks(f"z-{n}", for_s)) for n, (usd, for_s) in enumerate(launches)))
    more = spent_of(store, NOW_S, state).spent_usd - spent_of(store, NOW_S, STATE).spent_usd
    most = sum((usd * Decimal(str(for_s)) / 3600 for usd, for_s in launches), Decimal(0))
    assert abs(more - most) < Decimal("1e-5")  # a time of day has no more digits
