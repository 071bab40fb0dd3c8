"""Accounting of egress: correct totals for any order of socket creation, growth and closing."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.reporting.egress_meter import EgressTally
from experiments.peer.reporting.socket_counters import SocketCounters


def _counters(cookie, sent, dst="10.0.0.2", segments=0):
    return SocketCounters(cookie, 1, "10.0.0.1", 1, dst, 2, sent, segments, 0, 0, 52)


def test_sockets_count_from_creation_with_headers():
    tally = EgressTally()
    tally.read([_counters(1, 1000, segments=3)])
    assert tally.totals == {"10.0.0.2": 1000 + 3 * 52}


def test_socket_that_existed_only_between_readings_counts():
    tally = EgressTally()
    tally.read([])
    tally.closed(_counters(1, 1000))
    tally.read([])
    assert tally.totals == {"10.0.0.2": 1000}
    assert tally.without_tail == 0


def test_bytes_after_the_last_reading_count():
    tally = EgressTally()
    tally.read([_counters(1, 1000)])
    tally.closed(_counters(1, 1700))
    assert tally.totals == {"10.0.0.2": 1700}


def test_a_socket_that_one_dump_skipped_is_not_counted_twice():
    tally = EgressTally()
    tally.read([_counters(1, 1000)])
    tally.read([])
    tally.read([_counters(1, 1200)])
    assert tally.totals == {"10.0.0.2": 1200}


def test_vanished_socket_is_counted():
    tally = EgressTally()
    tally.read([_counters(1, 1000)])
    for _ in range(200):
        tally.read([])
    assert (tally.totals, tally.without_tail) == ({"10.0.0.2": 1000}, 1)


def test_reused_cookie_is_a_new_socket():
    tally = EgressTally()
    tally.read([_counters(1, 1000)])
    tally.read([_counters(1, 300)])  # smaller: another socket
    tally.read([_counters(1, 300, dst="10.0.0.3")])  # elsewhere: another socket
    assert tally.totals == {"10.0.0.2": 1300, "10.0.0.3": 300}


_STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["grow", "read", "die"]), st.integers(0, 10_000)),
    max_size=60,
)


@given(steps=_STEPS, watched=st.booleans())
def test_totals_are_correct_and_never_decrease(steps, watched):
    """A model of the kernel: five socket places, each new socket with a new cookie; readings at any time."""
    tally, alive, born, truth = EgressTally(), {}, 0, defaultdict(int)
    before: dict[str, int] = {}
    for place, what, count in steps:
        dst = f"10.0.0.{place}"
        if what == "grow":
            if place not in alive:
                born, alive[place] = born + 1, [born, 0]
            alive[place][1] += count
            truth[dst] += count
        elif what == "die" and place in alive:
            cookie, sent = alive.pop(place)
            if watched:
                tally.closed(_counters(cookie, sent, dst))
        elif what == "read":
            tally.read(_counters(cookie, sent, f"10.0.0.{p}") for p, (cookie, sent) in alive.items())
        assert all(tally.totals[dst] >= count for dst, count in before.items())
        before = dict(tally.totals)
    tally.read(_counters(cookie, sent, f"10.0.0.{p}") for p, (cookie, sent) in alive.items())
    if watched:
        assert {d: n for d, n in tally.totals.items() if n} == {d: n for d, n in truth.items() if n}
    assert all(tally.totals[dst] <= truth[dst] for dst in tally.totals)  # unwatched: less, never more
