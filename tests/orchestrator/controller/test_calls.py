"""Queues of provider calls: the limit per method, the order, and independence of methods."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from cloud.provider import AmbiguousError
from orchestrator.controller.calls import Call, Line, RayCalls, _CallWorker, is_under_way
from orchestrator.ray.processes import named_for


def call(key: str) -> Call:
    return Call(key, key.split()[0])


def test_a_termination_does_not_wait_for_requests():
    line = Line(2)
    for key in ("request a", "request b", "request c", "terminate d"):
        line.add(call(key))
    taken = line.take([])
    assert [c.key for c in taken] == ["request a", "request b", "terminate d"]
    assert list(line) == ["request c"]
    assert line.take(taken) == []
    assert [c.key for c in line.take(taken[1:])] == ["request c"]


def test_queued_calls_can_be_dropped():
    line = Line(1)
    line.add(call("request a"))
    line.add(call("request b"))
    begun = line.take([])
    assert not line.drop("request a")
    assert line.drop("request b")
    assert line.take([]) == []
    assert "request b" not in line
    assert [c.key for c in begun] == ["request a"]


def test_a_key_does_not_match_keys_it_is_a_prefix_of():
    keys = ["request r-a-10", "observe"]
    assert is_under_way("request r-a-10", keys)
    assert not is_under_way("request r-a-1", keys)
    assert is_under_way("request", keys)
    assert is_under_way("observe", keys)
    assert not is_under_way("terminate", keys)
    assert not is_under_way("req", keys)


@given(st.lists(st.sampled_from(["request", "terminate", "observe"]), max_size=40), st.integers(1, 4))
def test_every_call_starts_once_and_in_order(methods, room):
    line, begun, under_way = Line(room), [], []
    for n, method in enumerate(methods):
        line.add(call(f"{method} {n}"))
    while list(line) or under_way:
        taken = line.take(under_way)
        begun, under_way = begun + taken, under_way + taken
        for method in set(methods):
            assert sum(c.method == method for c in under_way) <= room
        under_way = under_way[1:]  # the oldest ends
    for method in set(methods):
        mine = [int(c.key.split()[1]) for c in begun if c.method == method]
        assert mine == sorted(mine)
    assert len(begun) == len(methods) == len({c.key for c in begun})


def test_an_abandoned_call_is_killed(monkeypatch):
    """Else what it does later, nobody would know of."""
    killed, now_s = [], [0.0]
    caller = SimpleNamespace(call=SimpleNamespace(remote=lambda *_: "reference"))
    monkeypatch.setattr("ray.wait", lambda references, timeout: ([], references))
    monkeypatch.setattr("ray.kill", killed.append)
    calls = RayCalls.__new__(RayCalls)
    calls._idle, calls._queue, calls._under_way = [caller], Line(8), {}
    calls._make_provider, calls._monotonic_s = None, lambda: now_s[0]
    assert calls.submit(call("request a"))
    assert calls.poll() == []
    now_s[0] = 61.0
    (done,) = calls.poll()
    assert isinstance(done.error, AmbiguousError)
    assert killed == [caller]
    assert calls._idle == []


def test_actors_of_a_run_are_named_by_it():
    named = named_for("geo-b2-1", _CallWorker)
    assert named.__name__ == "CallWorker geo-b2-1"  # the title of its process, after "ray::"
    assert issubclass(named, _CallWorker)
