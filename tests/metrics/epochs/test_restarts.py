"""All peers lost at once: what was trained before is told, and mixed into no figure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, vm

from metrics.epochs.restarts import records_before_restart, records_since_restart
from metrics.epochs.throughput import swarm_epochs


def test_swarm_that_lost_all_peers_restarts_from_scratch():
    first = [epoch("a", k, 12.0 * k) for k in range(1, 6)]
    second = [epoch("b", k, 200.0 + 12 * k) for k in range(1, 4)]
    vms = [vm("a", ended_s=100.0), vm("b", ended_s=None)]
    assert records_since_restart([*second, *first], vms) == second
    assert records_before_restart([*second, *first], vms) == first
    epochs = swarm_epochs([*first, *second], 1, vms=vms)
    assert [(e.epoch, e.duration_s, e.peers[0].vm) for e in epochs] == [
        (1, 12, "b"),
        (2, 12, "b"),
        (3, 12, "b"),
    ]


def test_one_remaining_peer_keeps_the_state():
    """A replacement goes on where the others are; so does one that trained the same epoch again."""
    stays = [epoch("a", k, 12.0 * k) for k in range(1, 9)]
    left = [epoch("b", k, 12.0 * k) for k in range(1, 4)]
    came = [epoch("c", k, 12.0 * k) for k in range(6, 9)]
    vms = [vm("a", ended_s=None), vm("b", ended_s=50.0), vm("c", ended_s=None)]
    assert len(records_since_restart([*stays, *left, *came], vms)) == 14
    assert [e.epoch for e in swarm_epochs([*stays, *left, *came], 1, vms=vms)] == list(range(1, 9))


def test_swarm_that_resumed_its_state_has_not_restarted():
    records = [epoch("a", 1, 0.0), epoch("a", 2, 12.0), epoch("b", 3, 100.0)]
    assert records_since_restart(records, [vm("a", ended_s=50.0), vm("b", ended_s=None)]) == records


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.floats(0, 1e3)), max_size=20))
def test_without_ends_of_vms_nothing_is_dropped(rows: list[tuple[str, int, float]]):
    records = [epoch(name, number, began_s) for name, number, began_s in rows]
    kept = records_since_restart(records, [])
    assert records_before_restart(records, []) == []
    assert sorted(kept, key=repr) == sorted(records, key=repr)
