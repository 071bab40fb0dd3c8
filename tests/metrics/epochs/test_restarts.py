"""All peers lost at once: what was trained again, or lost for good, is told, and mixed into no figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, vm

from metrics.epochs.restarts import kept_records, training
from metrics.epochs.throughput import swarm_epochs
from metrics.records import EpochRecord, VmRecord


def test_swarm_that_lost_all_peers_restarts_from_scratch():
    first = [epoch("a", k, 12.0 * k) for k in range(1, 6)]
    second = [epoch("b", k, 200.0 + 12 * k) for k in range(1, 4)]
    vms = [vm("a", ended_s=100.0), vm("b", ended_s=None)]
    found = training([*second, *first], vms)
    assert (list(found.kept), list(found.lost)) == (second, first)
    assert [(one.from_epoch, one.at_s) for one in found.restarts] == [(0, 212.0)]
    epochs = swarm_epochs([*first, *second], 1, vms=vms)
    assert [(e.epoch, e.duration_s, e.peers[0].vm) for e in epochs] == [
        (1, 12, "b"),
        (2, 12, "b"),
        (3, 12, "b"),
    ]


def test_swarm_resumes_from_a_checkpoint():
    """The outage and the lost epochs are in no epoch's wall time, and the new peers have not joined a running swarm."""
    first = [epoch("a", k, 12.0 * k) for k in range(1, 6)]
    second = [epoch(name, k, 200.0 + 12 * k) for k in range(4, 8) for name in ("b", "c")]
    vms = [vm("a", ended_s=80.0), vm("b"), vm("c")]
    found = training([*second, *first], vms)
    assert list(found.kept) == [*first[:3], *second]
    assert [(one.from_epoch, one.at_s, list(one.lost)) for one in found.restarts] == [(3, 248.0, first[3:])]
    epochs = swarm_epochs([*second, *first], 1, vms=vms)
    assert [(e.epoch, len(e.peers), e.duration_s, e.joined, e.left) for e in epochs] == [
        *((k, 1, 12, (), ()) for k in (1, 2, 3)),
        *((k, 2, 12, (), ()) for k in (4, 5, 6, 7)),
    ]


def test_one_remaining_peer_keeps_the_state():
    """A replacement goes on where the others are; so does one that trained the same epoch again."""
    stays = [epoch("a", k, 12.0 * k) for k in range(1, 9)]
    left = [epoch("b", k, 12.0 * k) for k in range(1, 4)]
    came = [epoch("c", k, 12.0 * k) for k in range(6, 9)]
    vms = [vm("a", ended_s=None), vm("b", ended_s=50.0), vm("c", ended_s=None)]
    assert len(kept_records([*stays, *left, *came], vms)) == 14
    assert [e.epoch for e in swarm_epochs([*stays, *left, *came], 1, vms=vms)] == list(range(1, 9))


def test_swarm_that_resumed_its_state_has_not_restarted():
    records = [epoch("a", 1, 0.0), epoch("a", 2, 12.0), epoch("b", 3, 100.0)]
    found = training(records, [vm("a", ended_s=50.0), vm("b", ended_s=None)])
    assert (list(found.kept), found.restarts) == (records, ())


def test_vms_with_a_notice_may_outlive_their_peers():
    """The replacements resume while the lost peers' VMs, which have left, still run."""
    first = [epoch("a", k, 12.0 * k) for k in range(1, 6)]
    second = [epoch("b", k, 50.0 + 12 * k) for k in range(4, 8)]
    found = training([*first, *second], [vm("a", ended_s=150.0), vm("b")])
    assert [(one.from_epoch, list(one.lost)) for one in found.restarts] == [(3, first[3:])]
    still_there = training([*first, *second], [vm("a"), vm("b")])
    assert still_there.restarts == ()
    went_on = training([*first, epoch("a", 6, 130.0), *second], [vm("a", ended_s=150.0), vm("b")])
    assert went_on.restarts == ()


_ROWS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 40).map(lambda n: 25.0 * n)),
    max_size=24,
)
_ENDS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40).map(lambda n: 25.0 * n))


@given(_ROWS, _ENDS, st.randoms(use_true_random=False))
def test_each_record_is_kept_or_lost_whatever_the_order(
    rows: list[tuple[str, int, float]], ends: dict[str, float], random: Random
):
    records = [epoch(name, number, began_s) for name, number, began_s in rows]
    vms = [vm(name, ended_s=ended_s) for name, ended_s in ends.items()]
    found = training(records, vms)
    assert sorted([*found.kept, *found.lost], key=repr) == sorted(records, key=repr)
    assert all(r.epoch > one.from_epoch for one in found.restarts for r in one.lost)
    shuffled = random.sample(records, len(records))
    assert training(shuffled, vms) == found


@given(_ROWS, _ENDS)
def test_no_epoch_counts_twice(rows: list[tuple[str, int, float]], ends: dict[str, float]):
    """No two records of an epoch that count are separated by a time at which every VM with a record had ended."""
    records = [epoch(name, number, began_s) for name, number, began_s in rows]
    vms = [vm(name, ended_s=ended_s) for name, ended_s in ends.items()]
    swarms_s = [
        r.began_s
        for r in records
        if all(_gone_s(q, records, ends) <= r.began_s for q in records if q.began_s < r.began_s)
    ]
    for number in range(1, 7):
        times = [r.began_s for r in kept_records(records, vms) if r.epoch == number]
        assert not any(min(times) < began_s <= max(times) for began_s in swarms_s if times)


def _gone_s(record: EpochRecord, records: Sequence[EpochRecord], ends: Mapping[str, float]) -> float:
    """When the VM of a record is gone: after its end and its last record."""
    return max(ends.get(record.vm, math.inf), *(r.ended_s for r in records if r.vm == record.vm))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
def test_restarts_at_epoch_1_are_as_before_checkpoints(swarms: list[tuple[int, int]]):
    """As decided by the rule that knew only restarts from scratch."""
    records: list[EpochRecord] = []
    vms: list[VmRecord] = []
    at_s = 0.0
    for number, (epochs, peers) in enumerate(swarms):
        names = [f"{number}-{peer}" for peer in range(peers)]
        records += [epoch(name, k, at_s + 12 * (k - 1)) for k in range(1, epochs + 1) for name in names]
        at_s += 12 * epochs + 5
        vms += [vm(name, ended_s=at_s) for name in names]
    assert list(kept_records(records, vms)) == _since_scratch(records, vms)


def _since_scratch(records: Sequence[EpochRecord], vms: Sequence[VmRecord]) -> list[EpochRecord]:
    ended = {row.vm: row.ended_s for row in vms if row.ended_s is not None}
    kept: list[EpochRecord] = []
    last_end_s = -math.inf
    for record in sorted(records, key=lambda r: (r.began_s, r.ended_s, r.epoch, r.vm)):
        if record.began_s >= last_end_s and record.epoch == 1:
            kept = []
        kept.append(record)
        last_end_s = max(last_end_s, record.ended_s, ended.get(record.vm, math.inf))
    return kept


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.floats(0, 1e3)), max_size=20))
def test_without_ends_of_vms_nothing_is_dropped(rows: list[tuple[str, int, float]]):
    records = [epoch(name, number, began_s) for name, number, began_s in rows]
    found = training(records, [])
    assert found.lost == ()
    assert sorted(found.kept, key=repr) == sorted(records, key=repr)
