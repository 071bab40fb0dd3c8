"""What preemptions cost: a run worked out by hand, and what holds of any run."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, vm

from metrics.cost.preemptions import Preemptions, preemptions
from metrics.epochs.scaling import Scales, full_scale_epochs
from metrics.epochs.throughput import swarm_epochs
from metrics.records import EpochRecord, EventRecord, JoinRecord, VmRecord

NONE = Scales()
H = Decimal(3600)


def costs(
    vms: list[VmRecord],
    records: list[EpochRecord],
    joins: list[JoinRecord] | None = None,
    events: list[EventRecord] | None = None,
    scales: Scales = NONE,
    now_s: float = 1000.0,
    warmup: int = 1,
) -> Preemptions:
    raw = swarm_epochs(records, warmup, vms=vms)
    study = full_scale_epochs(raw, scales, None)
    return preemptions(vms, events or [], records, joins or [], raw, study, scales, now_s)


def run_event(seq: int, at_s: float, from_state: str, to_state: str) -> EventRecord:
    return EventRecord(seq, at_s, "run", "", -1, "", from_state, to_state, "", "{}")


# Epochs of 12 s: a and b together until 48 s. b is taken at 53 s, 5 s into epoch 5; its replacement is asked
# for at 60 s, trains from 90 s on with the state of epoch 5, and epoch 7 is its first. a alone takes 22 s for
# epochs 5 and 6 (twice the samples), 2 s longer than that for epoch 6 (it serves the state), 12 s again for 7.
VMS = [
    vm("a", slot="a", requested_s=-20.0, ended_s=120.0, end_cause="terminated"),
    vm("b", slot="b", requested_s=-20.0, ended_s=53.0, end_cause="preempted"),
    vm(
        "b1", slot="b", generation=1, requested_s=60.0, ended_s=120.0, end_cause="terminated",
        usd_per_h=Decimal("0.36"),
    ),
]  # fmt: skip
RECORDS = [
    *(epoch(name, n, 12.0 * (n - 1)) for name in "ab" for n in range(1, 5)),
    epoch("a", 5, 48.0, 20.0, 2.0, samples=256),
    epoch("a", 6, 70.0, 20.0, 4.0, samples=256),
    epoch("a", 7, 94.0),
    epoch("b1", 7, 90.0, 14.0, 2.0),
]
JOINS = [
    JoinRecord("a", 0.0, 0.0, 0, 0), JoinRecord("b", 0.0, 0.0, 0, 0), JoinRecord("b1", 90.0, 7.5, 6_000_000, 5)
]  # fmt: skip


def test_one_preemption_by_hand() -> None:
    (row,) = costs(VMS, RECORDS, JOINS).rows
    assert (row.vm, row.slot, row.at_s, row.replaced_by) == ("b", "b", 53.0, "b1")
    assert (row.lost_s, row.startup_s) == (5.0, 30.0)
    assert row.absent_s == 5.0 + 37.0
    assert (row.state_s, row.state_bytes) == (7.5, 6_000_000)
    rate = (128 * 3 + 128) / (3 * 12.0 + 16.0)  # b's three measured epochs, b1's one
    assert row.lost_samples == pytest.approx(rate * 42.0)
    # b1's first epoch is its own; a's epochs 5 and 7 are as long as its samples ask for, 6 took 2 s more: less
    # than a tenth of the 22 s it should take. So nothing is slow; at 5 s it is.
    assert (row.slowed_epochs, row.slowed_s) == ((), 0.0)
    assert row.lost_usd == Decimal("0.18") * 5 / H
    assert row.startup_usd == Decimal("0.36") * 30 / H
    assert row.usd == row.lost_usd + row.startup_usd


def test_epoch_slowed_by_a_state_download_is_reported() -> None:
    slow = {"comm_s": 7.0, "optimizer_sync_s": 7.0, "ended_s": 97.0}
    records = [replace(r, **slow) if (r.vm, r.epoch) == ("a", 6) else r for r in RECORDS]
    (row,) = costs(VMS, records, JOINS).rows
    assert (row.slowed_epochs, row.slowed_s) == ((6,), 5.0)
    assert row.slowed_usd == Decimal("0.18") * 5 / H


def test_slowdown_between_leaving_and_the_vm_s_end_counts() -> None:
    """b has averaged for the last time at 48 s and is taken at 93 s: epoch 5 of a looked for it in vain."""
    vms = [replace(row, ended_s=93.0) if row.vm == "b" else row for row in VMS[:2]]
    slow = {"comm_s": 8.0, "optimizer_sync_s": 8.0, "ended_s": 76.0}
    records = [replace(r, **slow) if (r.vm, r.epoch) == ("a", 5) else r for r in RECORDS[:9]]
    (row,) = costs(vms, records, JOINS).rows
    assert (row.lost_s, row.slowed_epochs, row.slowed_s) == (45.0, (5,), 6.0)


def test_absence_ends_with_the_training() -> None:
    late = [JoinRecord("b1", 118.0, 1.0, 5, 7)]
    (row,) = costs(VMS, [r for r in RECORDS if r.vm != "b1"], late).rows
    assert (row.replaced_by, row.startup_s) == ("b1", 58.0)
    assert row.absent_s == 106.0 - 48.0


def test_without_a_record_of_joining_the_first_epoch_says_when() -> None:
    (row,) = costs(VMS, RECORDS).rows
    assert row.startup_s == 30.0
    assert (row.state_s, row.state_bytes) == (None, None)


def test_vm_without_a_replacement_is_absent_until_the_training_ends() -> None:
    (row,) = costs(VMS[:2], [r for r in RECORDS if r.vm != "b1"]).rows
    assert (row.replaced_by, row.startup_s, row.startup_usd) == ("", 0.0, Decimal(0))
    assert row.absent_s == 106.0 - 48.0


def test_vm_whose_peer_had_finished_lost_nothing() -> None:
    done = EventRecord(1, 49.0, "transition", "b", 0, "b", "TRAINING", "DONE", "the peer finished", "{}")
    found = costs(VMS[:2], [r for r in RECORDS if r.vm != "b1"], events=[done])
    (row,) = found.rows
    assert (row.lost_s, row.absent_s, row.lost_samples, found.usd) == (0.0, 0.0, 0.0, Decimal(0))


def test_vm_preempted_before_its_first_averaging_lost_all_its_seconds() -> None:
    first = vm("c", slot="c", requested_s=-20.0, ended_s=10.0, end_cause="preempted: no reason")
    (row,) = costs([*VMS[:1], first], [r for r in RECORDS if r.vm == "a"]).rows
    assert row.lost_s == 30.0
    assert row.lost_samples is None  # nobody knows its rate


def test_replacement_preempted_while_starting_is_counted_once() -> None:
    """b -> b1 (preempted after 20 s, never trained) -> b2."""
    vms = [
        *VMS[:2],
        vm("b1", slot="b", generation=1, requested_s=60.0, ended_s=80.0, end_cause="preempted"),
        vm("b2", slot="b", generation=2, requested_s=85.0, ended_s=120.0),
    ]
    records = [replace(r, vm="b2") if r.vm == "b1" else r for r in RECORDS]
    found = costs(vms, records).rows
    assert [(r.vm, r.lost_s, r.startup_s, r.replaced_by) for r in found] == [
        ("b", 5.0, 20.0, ""),
        ("b1", 0.0, 5.0, "b2"),
    ]


def test_lost_work_is_scaled_like_an_epoch_and_startup_is_not() -> None:
    (row,) = costs(VMS, RECORDS, JOINS, scales=Scales(bytes=10.0, samples=4.0)).rows
    assert row.startup_s == 30.0
    assert row.lost_s == pytest.approx(5.0 * (4 * 10.0 + 2.0) / 12.0)
    assert row.state_bytes == 60_000_000


def test_unknown_propagates() -> None:
    unpriced = [replace(row, usd_per_h=None) if row.vm == "b1" else row for row in VMS]
    found = costs(unpriced, RECORDS, JOINS)
    assert found.rows[0].lost_usd is not None
    assert (found.rows[0].startup_usd, found.rows[0].usd, found.usd) == (None, None, None)
    touched = costs(
        VMS, [r for r in RECORDS if r.epoch in (1, 5)], JOINS
    )  # no untouched epoch but the warm-up
    assert (touched.rows[0].slowed_s, touched.slowed_epochs, touched.usd) == (None, None, None)


def test_a_run_without_preemptions_costs_nothing() -> None:
    found = costs(VMS[:1], [r for r in RECORDS if r.vm == "a"])
    assert (found.usd, found.lost_samples, found.slowed_epochs, found.paused_usd) == (Decimal(0), 0.0, (), 0)


def test_a_pause_is_billed_for_the_vms_held_meanwhile() -> None:
    events = [
        run_event(1, 0.0, "running", "running"),
        run_event(2, 54.0, "running", "paused"),
        run_event(3, 70.0, "paused", "paused"),
        run_event(4, 90.0, "paused", "running"),
        run_event(5, 110.0, "running", "paused"),
    ]
    found = costs(VMS, RECORDS, JOINS, events, now_s=130.0)
    assert [(p.began_s, p.ended_s, p.seconds) for p in found.pauses] == [
        (54.0, 90.0, 36.0),
        (110.0, 130.0, 20.0),
    ]
    assert (
        found.pauses[0].usd == Decimal("0.18") * 36 / H + Decimal("0.36") * 30 / H
    )  # b is gone, b1 comes at 60
    assert found.pauses[1].usd == Decimal("0.18") * 10 / H + Decimal("0.36") * 10 / H
    assert found.paused_s == 56.0


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[VmRecord], list[EpochRecord], list[JoinRecord], list[EventRecord]]:
    """Slots with VMs one after the other; some train, some are taken, some have no price."""
    vms: list[VmRecord] = []
    records: list[EpochRecord] = []
    joins: list[JoinRecord] = []
    for slot in "abc"[: draw(st.integers(1, 3))]:
        at_s = draw(st.floats(0, 20))
        for generation in range(draw(st.integers(1, 4))):
            name = f"{slot}{generation}"
            requested_s = at_s + draw(st.floats(0, 30))
            began_s = now_s = requested_s + draw(st.floats(0, 60))
            number = draw(st.integers(1, 3))
            trained = draw(st.integers(0, 4))
            for n in range(number, number + trained):
                calc_s, comm_s = draw(st.floats(1, 30)), draw(st.floats(0, 9))
                records.append(epoch(name, n, now_s, calc_s, comm_s, samples=draw(st.integers(0, 900))))
                now_s += calc_s + comm_s
            if draw(st.booleans()) and (trained or draw(st.booleans())):
                joins.append(
                    JoinRecord(name, began_s, draw(st.floats(0, 9)), draw(st.none() | st.just(7)), 1)
                )
            at_s = now_s + draw(st.floats(0, 40))
            vms.append(
                vm(
                    name, slot=slot, generation=generation, requested_s=requested_s,
                    ended_s=draw(st.sampled_from([at_s, None])) if generation == 3 else at_s,
                    end_cause=draw(st.sampled_from(["preempted", "terminated", "failed: x"])),
                    usd_per_h=draw(st.sampled_from([Decimal("0.18"), None])),
                )
            )  # fmt: skip
    states = draw(st.lists(st.sampled_from(["running", "paused"]), max_size=6))
    events = [run_event(n, 20.0 * n, "", state) for n, state in enumerate(states)]
    return vms, records, joins, events


@given(runs(), st.sampled_from([NONE, Scales(10.0, 2.0, 3.0)]))
def test_no_cost_is_counted_twice_and_unknown_is_never_zero(
    made: tuple[list[VmRecord], list[EpochRecord], list[JoinRecord], list[EventRecord]], scales: Scales
) -> None:
    vms, records, joins, events = made
    found = costs(vms, records, joins, events, scales)
    assert {row.vm for row in found.rows} == {v.vm for v in vms if v.end_cause == "preempted"}
    lives_s = sum((1000.0 if v.ended_s is None else v.ended_s) - v.requested_s for v in vms)
    wasted_s = sum(row.lost_s + row.startup_s for row in found.rows)
    if scales.none:
        assert wasted_s <= lives_s + 1e-6
    for row in found.rows:
        assert min(row.lost_s, row.startup_s, row.absent_s) >= 0.0
        parts = (row.lost_usd, row.startup_usd, row.slowed_usd)
        assert (row.usd is None) == (None in parts)
        if row.usd is not None:
            assert row.usd == sum(parts)
        assert (row.slowed_s is None) == (row.slowed_epochs is None)
        price = next(v.usd_per_h for v in vms if v.vm == row.vm)
        assert (row.lost_usd is None) == (price is None)
    assert (found.usd is None) == any(row.usd is None for row in found.rows)
    listed = [number for row in found.rows for number in row.slowed_epochs or ()]
    assert len(listed) == len(set(listed))  # each slow epoch is one preemption's
    again = costs(vms[::-1], records[::-1], joins[::-1], events[::-1], scales)
    assert again == found
    assert all(p.seconds >= 0.0 for p in found.pauses)
