"""Reference policies against a second implementation that goes through every second, and the oracle against brute force."""

from __future__ import annotations

import itertools
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.spot.oracle import oracle_s
from analysis.spot.references import REFERENCES, training_share, training_shares
from analysis.spot.timeline import Timeline, covered, timeline
from cloud.spot.history import History


def of_rows(rows: list[tuple[int, ...]]) -> Timeline:
    """A timeline of one row a second."""
    histories = {
        f"z{n}": History(f"z{n}", "", tuple(map(float, range(len(rows)))), column, float(len(rows)))
        for n, column in enumerate(zip(*rows, strict=True))
    }
    return timeline(histories, 0.0, float(len(rows)))


def second_by_second(
    rows: list[tuple[int, ...]], policy: str, peers: int, restart_s: int, seed: int
) -> float:
    """Seconds of training, one second after the other."""
    places = range(len(rows[0]))
    if policy == "pinned_to_best":
        return max(_seconds(rows, "any_up", peers, restart_s, seed, [place]) for place in places)
    return _seconds(rows, policy, peers, restart_s, seed, list(places))


def _seconds(rows, policy, peers, restart_s, seed, allowed) -> float:
    random = Random(f"reference {seed}")
    where: list[int | None] = [None] * peers
    since, last, next_ask, up, trained = [0] * peers, [None] * peers, [0] * peers, [0] * len(rows[0]), 0
    for t, row in enumerate(rows):
        for place, count in enumerate(row):
            vms = sorted((since[p], p) for p in range(peers) if where[p] == place)
            for _, p in vms[count:]:
                where[p], last[p], next_ask[p] = None, place, t
                before = min(t - since[p], restart_s)
                trained += (t - since[p]) - before
        for p in range(peers):
            if where[p] is not None or next_ask[p] > t:
                continue
            room = [place for place in allowed if where.count(place) < row[place]]
            chosen = None
            if policy == "random_other":
                chosen = random.choice([place for place in allowed if place != last[p]] or allowed)
                if chosen not in room:
                    last[p], next_ask[p], chosen = chosen, t + restart_s, None
            elif policy == "past_availability" and room:
                most = max(up[place] for place in room)
                chosen = min(place for place in room if up[place] == most)
            elif room:
                chosen = random.choice(room)
            if chosen is not None:
                where[p], since[p] = chosen, t
        for place, count in enumerate(row):
            up[place] += count > 0
    return trained + sum(
        max(0, len(rows) - since[p] - restart_s) for p in range(peers) if where[p] is not None
    )


def brute_force(rows: list[tuple[int, ...]], peers: int, restart_s: int) -> int:
    """The most seconds of training over all choices in all seconds: of each peer, stay or be at any place anew."""
    places = range(len(rows[0]))

    @cache
    def best(t: int, state: tuple[tuple[int, int] | None, ...]) -> int:
        if t == len(rows):
            return 0
        found = 0
        for chosen in itertools.product([None, "stay", *places], repeat=peers):
            after: list[tuple[int, int] | None] = []
            for was, choice in zip(state, chosen, strict=True):
                after.append(was if choice == "stay" else None if choice is None else (choice, restart_s))
            if any(sum(a is not None and a[0] == z for a in after) > rows[t][z] for z in places):
                continue
            trains = sum(a is not None and a[1] == 0 for a in after)
            rest = tuple(sorted((a and (a[0], max(0, a[1] - 1)) for a in after), key=repr))
            found = max(found, trains + best(t + 1, rest))
        return found

    return best(0, (None,) * peers)


def grids(places: int, most: int, seconds: int):
    row = st.tuples(*[st.integers(0, most)] * places)
    spells = st.lists(st.tuples(row, st.integers(1, 6)), min_size=1, max_size=seconds)
    return spells.map(lambda found: [row for row, count in found for _ in range(count)][: 6 * seconds])


@given(
    st.integers(1, 4).flatmap(lambda places: grids(places, 3, 12)),
    st.sampled_from([name for name in REFERENCES if name != "oracle"]),
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_events_give_what_seconds_give(rows, policy, peers, restart_s, seed):
    expected = second_by_second(rows, policy, peers, restart_s, seed)
    found = training_share(of_rows(rows), policy, peers=peers, restart_s=restart_s, seed=seed)
    assert found * peers * len(rows) == pytest.approx(expected)


@given(st.integers(1, 3).flatmap(lambda places: grids(places, 1, 5)), st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_oracle_of_one_peer_is_the_best_of_all_choices(rows, restart_s):
    assert oracle_s(of_rows(rows), peers=1, restart_s=restart_s) == pytest.approx(
        brute_force(rows, 1, restart_s)
    )


@given(grids(2, 2, 4).map(lambda rows: rows[:9]), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_oracle_of_two_peers_is_the_best_of_all_choices(rows, restart_s):
    assert oracle_s(of_rows(rows), peers=2, restart_s=restart_s) == pytest.approx(
        brute_force(rows, 2, restart_s)
    )


@given(
    st.integers(1, 4).flatmap(lambda places: grids(places, 5, 15)),
    st.integers(1, 6),
    st.integers(0, 9),
    st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_no_policy_is_better_than_the_oracle(rows, peers, restart_s, seed):
    found = training_shares(of_rows(rows), peers=peers, restart_s=restart_s, seed=seed)
    assert max(found.values()) <= found["oracle"] + 1e-9
    assert min(found.values()) >= 0
    assert found["oracle"] <= 1


def test_oracle_waits_where_waiting_is_better_than_the_first_place_with_room():
    """z0 has room until 60 s, z1 from 50 s on: with 30 s to start, one start at 50 s beats two."""
    z0 = History("z0", "", (0.0, 10.0, 20.0, 60.0), (0, 0, 1, 0), 200.0)
    z1 = History("z1", "", (0.0, 50.0), (0, 1), 200.0)
    line = timeline({"z0": z0, "z1": z1}, 0.0, 200.0)
    assert oracle_s(line, peers=1, restart_s=30.0) == 120.0
    assert training_share(line, "any_up", peers=1, restart_s=30.0, seed=0) == pytest.approx(
        (10.0 + 110.0) / 200.0
    )
    assert oracle_s(line, peers=1, restart_s=45.0) == 105.0
    assert training_share(line, "any_up", peers=1, restart_s=45.0, seed=0) == pytest.approx(95.0 / 200.0)


def test_timeline_has_only_changes_and_only_common_time():
    a = History("a", "", (10.0, 20.0, 30.0, 40.0), (1, 1, 2, 0), 100.0)
    b = History("b", "", (0.0, 35.0), (3, 3), 60.0)
    assert covered({"a": a, "b": b}) == (10.0, 60.0)
    line = timeline({"a": a, "b": b}, 10.0, 60.0)
    assert line == Timeline(("a", "b"), (10.0, 30.0, 40.0), ((1, 3), (2, 3), (0, 3)), 60.0)
    with pytest.raises(ValueError, match="cover the whole time"):
        timeline({"a": a, "b": b}, 5.0, 60.0)


def test_peers_and_restart_must_make_sense():
    line = of_rows([(1,)])
    with pytest.raises(ValueError, match="at least one peer"):
        training_shares(line, peers=0, restart_s=1.0, seed=0)
    with pytest.raises(ValueError, match="a restart"):
        training_shares(line, peers=1, restart_s=-1.0, seed=0)
