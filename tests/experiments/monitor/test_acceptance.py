"""What the DHT serves and what of it counts: forged, malformed, replayed, huge and foreign records do not."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace
from typing import Any

import dht_entries as entries
import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils.timed_storage import ValueWithExpiration
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.monitor import acceptance
from experiments.monitor.acceptance import Gate, Verifier, raw_entries
from experiments.monitor.progress import ProgressBoard
from experiments.monitor.roster import Roster, RosterError, load_roster
from experiments.monitor.sink import Sink, line_of, read_accepted
from experiments.wire.dht_records import (
    EVALUATIONS_FIELD,
    MAX_VALUE_BYTES,
    EpochReport,
    Evaluation,
    encode_evaluations,
)

NOW_S = entries.NOW_S

_peer = functools.cache(entries.Peer)  # a key takes 0.1 s to make
_verifier = functools.cache(Verifier)


def _gate():
    return Gate(entries.RUN_KEY, _verifier())


def _roster(*peers):
    return Roster(peer.on_roster for peer in peers or (_peer("a"), _peer("b")))


def _offer(gate, *raws, roster=None, now_s=NOW_S):
    new, wrong = gate.offer(raws, roster or _roster(), now_s)
    return [(row.epoch.vm, row.epoch.epoch) for row in new], [one.reason for one in wrong]


def test_each_epoch_is_accepted_once():
    gate, a, b = _gate(), _peer("a"), _peer("b")
    first = a.good(1, 1)
    assert _offer(gate, first, b.good(7, 1), first) == ([("run-a-0", 1), ("run-b-0", 1)], [])
    assert _offer(gate, first) == ([], [])
    assert _offer(gate, a.good(3, 1, 2, 3), b.good(8, 1, 2)) == (
        [("run-a-0", 2), ("run-a-0", 3), ("run-b-0", 2)],
        [],
    )
    assert gate.newest_epoch("run-a-0") == 3


def test_the_whole_report_arrives():
    a = _peer("a")
    new, _ = _gate().offer([a.good(1, 1, 2)], _roster(), NOW_S)
    assert new == a.reports(1, 2)


def test_outdated_replica_is_not_a_rejection():
    gate, a = _gate(), _peer("a")
    old, new = a.good(1, 1, expiration=NOW_S + 200), a.good(2, 1, 2)
    assert _offer(gate, old, new) == ([("run-a-0", 1), ("run-a-0", 2)], [])
    assert _offer(gate, new, old) == ([], [])


def test_an_older_value_after_a_newer_one_is_a_replay_counted_once():
    gate, a = _gate(), _peer("a")
    old = a.good(1, 1, expiration=NOW_S + 200)
    _offer(gate, a.good(2, 1, 2))
    assert _offer(gate, old) == ([], ["replayed"])
    assert _offer(gate, old) == ([], [])


def test_history_cannot_be_rewritten():
    gate, a = _gate(), _peer("a")
    _offer(gate, a.good(1, 1))
    value = copy.deepcopy(a.value(2, 1, 2))
    value["epochs"][0]["samples"] += 1
    assert _offer(gate, a.entry(value)) == ([], ["changed"])
    assert _offer(gate, a.good(3, 1, 2)) == ([("run-a-0", 2)], [])


def test_a_forged_record_that_expires_later_hides_no_good_one():
    gate, a, b = _gate(), _peer("a"), _peer("b")
    by_b = b.entry(
        a.value(2**50, 9), subkey=a.subkey, expiration=NOW_S + 350
    )  # b's signer leaves it unsigned
    unsigned = a.entry(a.value(9, 9), sign=False, expiration=NOW_S + 340)
    assert _offer(gate, by_b, unsigned, a.good(1, 1)) == ([("run-a-0", 1)], ["signature", "signature"])


def test_vm_may_only_report_as_itself():
    a, b = _peer("a"), _peer("b")
    as_b = a.entry(a.value(1, 1), subkey=b.subkey[: b.subkey.index(b"[")] + a.subkey[a.subkey.index(b"[") :])
    assert _offer(_gate(), as_b) == ([], ["roster"])
    assert _offer(_gate(), a.entry(b.value(1, 1))) == ([], ["identity"])
    assert _offer(_gate(), a.entry(a.value(1, 1) | {"gen": 1})) == ([], ["identity"])


def test_record_is_accepted_once_its_vm_is_on_the_roster():
    gate, a, b = _gate(), _peer("a"), _peer("b")
    entry = b.good(1, 1)
    assert _offer(gate, entry, roster=_roster(a)) == ([], ["roster"])
    gate.roster_changed()
    assert _offer(gate, entry, roster=_roster(a, b)) == ([("run-b-0", 1)], [])


@pytest.mark.parametrize("skew_s", [-3600.0, -61.0, -31.0, 31.0, 700.0, 3600.0])
def test_epochs_are_accepted_despite_clock_differences(skew_s):
    """The controller's clock is off by `skew_s`, and set right in mid-run."""
    gate, a = _gate(), _peer("a")
    assert _offer(gate, a.good(1, 1), now_s=NOW_S + skew_s) == ([("run-a-0", 1)], [])
    assert _offer(gate, a.good(2, 1, 2, expiration=NOW_S + 320), now_s=NOW_S + 20) == ([("run-a-0", 2)], [])
    replayed = a.good(1, 1, expiration=NOW_S + 330)
    assert _offer(gate, replayed, now_s=NOW_S + 30) == ([], ["replayed"])  # however long it lives


def test_record_rejected_for_its_time_is_accepted_once_the_clock_is_right():
    gate, entry = _gate(), _peer("a").good(1, 1)
    day_s = 86_400.0
    assert _offer(gate, entry, now_s=NOW_S - 2 * day_s) == ([], ["clock"])
    assert _offer(gate, entry, now_s=NOW_S - 2 * day_s) == ([], [])  # told once
    assert _offer(gate, entry, now_s=NOW_S) == ([("run-a-0", 1)], [])
    assert _offer(gate, entry, now_s=NOW_S) == ([], [])


@pytest.mark.parametrize("expiration", [math.nan, math.inf])
def test_an_expiry_is_a_time(expiration):
    assert _offer(_gate(), _peer("a").good(1, 1, expiration=expiration)) == ([], ["values"])


def test_huge_value_is_rejected_unread():
    a = _peer("a")
    value = a.value(1, 1) | {"ran": "x" * MAX_VALUE_BYTES}
    assert _offer(_gate(), a.entry(value)) == ([], ["size"])


_BAD_NUMBERS = {
    "samples": [-1, 1.0, True, 2**61, None, "5"],
    "calc": [-1.0, math.nan, math.inf, 3, 8.9, 7.1],  # the last two: phases no longer add up
    "comm": [math.nan, 1e9],
    "loss": [math.nan, math.inf, "low"],
    "began": [NOW_S + 1, -1.0],
    "ended": [NOW_S + 2 * 86400, math.inf],
    "epoch": [0, -1, 1.5],
    "phases": [[], [1.0] * 6, [math.nan] * 7, [10.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.1]],
    "dropped": ["\x1b[31m", "x" * 301, b"bytes"],
    "sent": [
        [{"to": "elsewhere", "phase": "comm", "s": 1.0, "bytes": 1, "model": None}],
        [{"to": "10.0.0.2", "phase": "lunch", "s": 1.0, "bytes": 1, "model": None}],
        [{"to": "10.0.0.2", "phase": "comm", "s": 1.0, "bytes": -1, "model": None}],
        [{"to": "10.0.0.2", "phase": "comm", "s": math.nan, "bytes": 1, "model": None}],
        [{"to": "10.0.0.2", "phase": "comm", "s": 1.0, "bytes": 1, "model": None}] * 2,
    ],
}


@pytest.mark.parametrize(("name", "number"), [(n, x) for n, found in _BAD_NUMBERS.items() for x in found])
def test_impossible_numbers_are_rejected(name, number):
    a = _peer("a")
    value = a.value(1, 1)
    value["epochs"][0][name] = number
    new, wrong = _offer(_gate(), a.entry(value))
    assert new == []
    assert wrong[0] in ("schema", "values", "clock")


def test_diverged_loss_does_not_reject_the_epoch():
    a = _peer("a")
    [report] = a.reports(1)
    gate = _gate()
    value = a.value(1, 1)
    value["epochs"][0]["loss"] = None
    new, wrong = gate.offer([a.entry(value)], _roster(), NOW_S)
    assert isinstance(new[0], EpochReport)
    assert (wrong, new[0].epoch.loss) == ([], None)
    assert replace(new[0].epoch, loss=0) == replace(report.epoch, loss=0)
    assert _offer(gate, a.entry(value | {"seq": 2})) == ([], [])


def test_records_accepted_by_an_earlier_process_are_not_new():
    gate, a = _gate(), _peer("a")
    for report in a.reports(1, 2):
        gate.restore("orch_epochs", a.vm, report.epoch.epoch, report)
    assert _offer(gate, a.good(5, 1, 2, 3)) == ([("run-a-0", 3)], [])


def test_evaluations_are_validated_too():
    gate, a = _gate(), _peer("a")
    row = Evaluation(a.vm, 4, NOW_S, 0.91, 0.3, 500)
    value = encode_evaluations("a", 0, 1, [row])
    assert gate.offer([a.entry(value, field=EVALUATIONS_FIELD)], _roster(), NOW_S) == ([row], [])
    value["evals"][0]["accuracy"] = 1.01
    _, wrong = gate.offer([a.entry(value | {"seq": 2}, field=EVALUATIONS_FIELD)], _roster(), NOW_S)
    assert [one.reason for one in wrong] == ["values"]


def test_only_the_newest_evaluation_must_be_of_today():
    """A peer whose turn comes every other day publishes its last three."""
    gate, a = _gate(), _peer("a")
    days = [NOW_S - 4 * 86400, NOW_S - 2 * 86400, NOW_S]
    rows = [Evaluation(a.vm, 4 + n, at_s, 0.9, 0.3, 500) for n, at_s in enumerate(days)]
    value = encode_evaluations("a", 0, 1, rows)
    assert gate.offer([a.entry(value, field=EVALUATIONS_FIELD)], _roster(), NOW_S) == (rows, [])
    for seq, times in enumerate(([days[2], days[1], days[2]], [days[0], days[1], NOW_S - 90_000]), start=2):
        for one, at_s in zip(value["evals"], times, strict=True):
            one["at"] = at_s
        _, wrong = gate.offer([a.entry(value | {"seq": seq}, field=EVALUATIONS_FIELD)], _roster(), NOW_S)
        assert [one.reason for one in wrong] == [["values"], ["clock"]][seq - 2]


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"wer": 1.5, "loss.test-2": -3.0}, None),
        ({}, None),
        ({"wer": 1}, "schema"),
        ({"wer": float("nan")}, "values"),
        ({"wer": float("inf")}, "values"),
        ({"WER": 1.5}, "schema"),
        ({f"m{n}": 1.0 for n in range(33)}, "values"),
        (None, "schema"),
    ],
)
def test_metrics_of_an_evaluation_are_validated(metrics: Any, reason: str | None):
    gate, a = _gate(), _peer("a")
    row = Evaluation(a.vm, 4, NOW_S, None, 0.3, 500, {})
    value = encode_evaluations("a", 0, 1, [row])
    value["evals"][0]["metrics"] = metrics
    new, wrong = gate.offer([a.entry(value, field=EVALUATIONS_FIELD)], _roster(), NOW_S)
    assert new == ([replace(row, metrics=metrics)] if reason is None else [])
    assert [one.reason for one in wrong] == ([reason] if reason else [])


def test_lines_of_evaluations_are_read_back_and_older_lines_too(tmp_path):
    old = Evaluation("run-a-0", 4, NOW_S, 0.91, 0.3, 500)
    new = Evaluation("run-a-0", 5, NOW_S, None, 0.3, 500, {"wer": 0.5})
    assert line_of(old) == {
        "kind": "evaluation", "vm": "run-a-0", "epoch": 4, "at_s": NOW_S, "accuracy": 0.91, "loss": 0.3, "samples": 500
    }  # fmt: skip
    path = tmp_path / "monitor.jsonl"
    sink = Sink(path)
    sink.write(line_of(row) for row in (old, new))
    sink.close()
    assert list(read_accepted(path)) == [old, new]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_flipped_byte_passes(data):
    """Whatever a node changes in a signed value, its subkey or its expiry: nothing new comes of it."""
    good = _peer("a").good(1, 1)
    part = data.draw(st.sampled_from(["value", "subkey", "expiration"]))
    if part == "expiration":
        shift = data.draw(st.floats(-300, 50).filter(lambda s: NOW_S + 300 + s != good.expiration))
        forged = replace(good, expiration=NOW_S + 300 + shift)
    else:
        raw = bytearray(getattr(good, part))
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        forged = replace(good, **{part: bytes(raw)})
    new, wrong = _offer(_gate(), forged)
    assert new == []
    assert len(wrong) == 1
    assert wrong[0] in ("signature", "subkey", "roster")


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(
    value=_JUNK | st.binary(), signed=st.booleans(), subkey=st.none() | _JUNK.filter(lambda s: s is not None)
)
@settings(max_examples=150, deadline=None)
def test_junk_is_dropped_and_counted_and_breaks_nothing(value, signed, subkey):
    a = _peer("a")
    gate = _gate()
    entry = a.entry(value, subkey=subkey, sign=signed and subkey is None)
    new, wrong = _offer(gate, entry, a.good(1, 1, expiration=NOW_S + 290))
    assert new == [("run-a-0", 1)]
    assert len(wrong) == 1


@given(order=st.permutations([1, 2, 3, 4, 5, 6]), skip=st.sets(st.integers(1, 5), max_size=2))
@settings(max_examples=60, deadline=None)
def test_missed_and_doubled_reads_lose_nothing(order, skip):
    """A reader that misses two stores in a row, and sees old ones again, ends with every epoch once."""
    a, gate, got = _peer("a"), _gate(), []
    stores = {n: a.good(n, *range(max(1, n - 2), n + 1), expiration=NOW_S + n) for n in range(1, 7)}
    for n in range(1, 7):
        if n not in skip:
            seen = [stores[k] for k in order if k <= n and k not in skip] + [stores[n]]
            new, wrong = _offer(gate, *seen)
            got += new
            assert wrong == []
    assert got == [("run-a-0", n) for n in range(1, 7)]


def test_invalid_rosters_are_rejected(tmp_path):
    path = tmp_path / "roster.json"
    for text in ("", "{}", '{"peers": [{"vm": "x"}]}', '{"peers": 3}'):
        path.write_text(text)
        with pytest.raises(RosterError, match=r"roster\.json"):
            load_roster(path)
    with pytest.raises(RosterError, match="twice"):
        Roster([_peer("a").on_roster, _peer("a").on_roster])


def _answer(*entries):
    with DictionaryDHTValue().freeze() as found:
        for subkey, value, expiration in entries:
            found.data[subkey] = ValueWithExpiration(value, expiration)
    return found


_TIMES = st.floats() | st.none() | st.text(max_size=3) | st.integers()


@given(
    entries_=st.lists(
        st.tuples(st.binary(max_size=40) | st.text() | st.integers() | st.none(), _JUNK, _TIMES), max_size=4
    )
)
@settings(max_examples=150, deadline=None)
def test_any_answer_of_a_node_is_handled(entries_):
    """Values that are no bytes, times that are none: a node answered `find` so, and the monitor died of it within 4 s."""
    a = _peer("a")
    good = a.good(1, 1)
    answer = _answer(*entries_, (good.subkey, good.value, good.expiration))
    read = raw_entries(good.key, answer)
    assert _offer(_gate(), *read)[0] == [("run-a-0", 1)]
    board = ProgressBoard(entries.RUN_KEY, 1000, Verifier())
    board.offer([replace(raw, key=board.key) for raw in read], _roster(), NOW_S)
    assert board.alive(NOW_S) == []


@given(value=_JUNK)
@settings(max_examples=100, deadline=None)
def test_any_signed_progress_is_handled(value):
    a = _peer("a")
    marker = a.subkey[a.subkey.index(b"[") :]
    board = ProgressBoard(entries.RUN_KEY, 1000, Verifier())
    board.offer([a.entry(value, subkey=marker, field="progress")], _roster(), NOW_S)
    assert board.rows(NOW_S) == []


def test_internal_error_rejects_only_one_record(monkeypatch):
    a, b = _peer("a"), _peer("b")
    real = acceptance.decode_epochs

    def decode(value, vm, *more):
        if vm == a.vm:
            raise ZeroDivisionError
        return real(value, vm, *more)

    monkeypatch.setattr(acceptance, "decode_epochs", decode)
    gate = _gate()
    read = a.good(1, 1), b.good(1, 1)
    assert _offer(gate, *read) == ([("run-b-0", 1)], ["unreadable"])
    assert _offer(gate, *read) == ([], []), "told once"
