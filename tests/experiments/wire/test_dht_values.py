"""Whatever the DHT holds, nothing raises in a peer, and nobody speaks for another."""

from __future__ import annotations

import asyncio
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.optim.progress_tracker import LocalTrainingProgress
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.peer.swarm.members import Member, declared_peers, owner_key_of, parse_members, valid_reports
from experiments.peer.swarm.orders import OrdersValidator
from experiments.wire.dht_records import OrchSchema, subkey_of
from experiments.wire.hivemind.patches import refuse_unsound_values
from experiments.wire.hivemind.values import MAX_AHEAD_S, is_sound, sound_value
from experiments.wire.orders import generate_run_key
from experiments.wire.record_keys import generate_identity, generate_record_key

NOW_S = 1_000_000.0
KEY, OTHER_KEY = generate_record_key()[1], generate_record_key()[1]
PEER, OTHER_PEER = generate_identity()[1], generate_identity()[1]
GOOD = ("r-a-0", "a", "training", 3, f"/ip4/10.0.0.1/tcp/31337/p2p/{PEER}")
WITH_WEIGHTS = (*GOOD, "0123456789abcdef")
SUBKEY = subkey_of("r-a-0", KEY)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=40)
    | st.binary(max_size=80)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.tuples(inner, inner, inner, inner, inner)
        | st.dictionaries(st.text(max_size=8) | st.integers() | st.binary(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
SUBKEYS = SCALARS | st.sampled_from(
    [SUBKEY, b"[owner:" + KEY.encode() + b"]", PeerID.from_base58(PEER).to_bytes()]
)
TIMES = st.sampled_from([NOW_S + 30.0, 0.0, math.inf, math.nan, 1e30, "x", None])


def entry(value: object, until_s: Any = NOW_S + 30.0) -> SimpleNamespace:
    return SimpleNamespace(value=value, expiration_time=until_s)


def like_a_member(draw: st.DrawFn) -> Any:
    """An announcement with some fields replaced."""
    fields: list[Any] = list(GOOD)
    for place in draw(st.sets(st.integers(0, 4), max_size=3)):
        fields[place] = draw(ANYTHING)
    return tuple(fields)


def like_a_report(draw: st.DrawFn) -> Any:
    said: dict[str, Any] = {
        "peer_id": PeerID.from_base58(PEER).to_bytes(), "epoch": 1, "samples_accumulated": 2,
        "samples_per_second": 3.0, "time": NOW_S, "client_mode": False,
    }  # fmt: skip
    for name in draw(st.sets(st.sampled_from(sorted(said)), max_size=3)):
        said[name] = draw(ANYTHING)
    return said


RECORDS = st.dictionaries(
    SUBKEYS,
    st.builds(
        entry, ANYTHING | st.composite(like_a_member)() | st.composite(like_a_report)(), TIMES
    )
    | ANYTHING,
    max_size=5,
)  # fmt: skip


@settings(max_examples=300)
@given(RECORDS | ANYTHING)
def test_no_record_raises_in_a_peer(found: object):
    for member in parse_members(found, NOW_S):
        PeerID.from_base58(member.maddr.rpartition("/p2p/")[2])
        assert member.until_s <= NOW_S + 7200.0
    for report in (valid_reports(found) or {}).values():
        if report.value is not None:
            said = LocalTrainingProgress.parse_obj(report.value)
            assert math.isfinite(said.samples_per_second + said.time)
    assert all(isinstance(peer, PeerID) for peer in declared_peers(found))


def test_a_member_that_announces_itself_is_read():
    assert parse_members({SUBKEY: entry(GOOD)}, NOW_S) == [Member(*GOOD, until_s=NOW_S + 30.0)]
    (member,) = parse_members({SUBKEY: entry(WITH_WEIGHTS)}, NOW_S)
    assert member == Member(*GOOD, until_s=NOW_S + 30.0, weights=WITH_WEIGHTS[-1])
    assert parse_members(None, NOW_S) == []


@pytest.mark.parametrize(
    ("subkey", "value", "until_s"),
    [
        ("r-a-0", GOOD, NOW_S),  # nobody signed it
        (subkey_of("r-b-0", KEY), GOOD, NOW_S),  # by another VM
        (SUBKEY, GOOD, NOW_S + 30 * 86400.0),  # a month ahead
        (SUBKEY, GOOD, math.nan),
        (SUBKEY, (*GOOD[:4], "alone"), NOW_S),
        (SUBKEY, (*GOOD[:4], "/ip4/10.0.0.1/tcp/31337/p2p/0OIl"), NOW_S),  # no base58
        (SUBKEY, (*GOOD[:3], True, GOOD[4]), NOW_S),
        (SUBKEY, (*GOOD, 7), NOW_S),
        (SUBKEY, (*WITH_WEIGHTS, "x"), NOW_S),
        (SUBKEY, (*GOOD[:3], 2**63, GOOD[4]), NOW_S),
        (SUBKEY, (*GOOD[:2], "asleep", *GOOD[3:]), NOW_S),
        (SUBKEY, None, NOW_S),
    ],
)
def test_announcements_not_by_the_member_are_ignored(subkey: Any, value: Any, until_s: float):
    assert parse_members({subkey: entry(value, until_s), SUBKEY + b"x": entry(GOOD)}, NOW_S) == []


def test_in_a_closed_swarm_a_vm_must_use_its_own_key_and_node():
    def is_member(vm: str, key: str, peer: str) -> bool:
        return (vm or "r-a-0", key, peer) == ("r-a-0", KEY, PEER)

    other = (*GOOD[:4], f"/ip4/10.0.0.1/tcp/31337/p2p/{OTHER_PEER}")
    assert parse_members({SUBKEY: entry(GOOD)}, NOW_S, is_member)
    assert parse_members({subkey_of("r-a-0", OTHER_KEY): entry(GOOD)}, NOW_S, is_member) == []
    assert parse_members({SUBKEY: entry(other)}, NOW_S, is_member) == []

    def reports(key: str, peer: str) -> Any:
        raw = PeerID.from_base58(peer).to_bytes()
        said = LocalTrainingProgress(
            peer_id=raw, epoch=1, samples_accumulated=2, samples_per_second=3.0, time=NOW_S, client_mode=False
        )
        return {b"[owner:" + key.encode() + b"]": entry(said.dict())}

    assert valid_reports(reports(KEY, PEER), is_member)
    assert not valid_reports(reports(OTHER_KEY, PEER), is_member), "a key that nobody was given"
    assert not valid_reports(reports(KEY, OTHER_PEER), is_member), "another's node"
    assert owner_key_of(next(iter(reports(KEY, PEER)))) == KEY


def test_invalid_name_in_the_list_of_averagers_does_not_hide_a_donor():
    raw = PeerID.from_base58(PEER).to_bytes()
    found = {
        b"x": entry(1),
        "text": entry(1),
        7: entry(1),
        raw: entry(1),
        b"": entry(1),
        b"\x00" * 9: entry(None),
    }
    assert PeerID(raw) in declared_peers(found)


@settings(max_examples=300)
@given(SUBKEYS, st.binary(max_size=60) | ANYTHING, TIMES)
def test_sound_values_can_be_read_by_every_node(subkey: Any, value: Any, until_s: Any):
    if is_sound(subkey, value, until_s, NOW_S):
        if not isinstance(subkey, bytes) or b"[owner:" not in subkey:
            MSGPackSerializer.loads(value)
        MSGPackSerializer.loads(re.sub(rb"\[signature:(.+?)\]", b"", value))  # as Hivemind reads a signed one
        assert math.isfinite(until_s)


def test_unsigned_entries_far_in_the_future_are_refused():
    value = MSGPackSerializer.dumps(1)
    assert is_sound(b"peer", value, NOW_S + MAX_AHEAD_S, NOW_S)
    assert not is_sound(b"peer", value, NOW_S + MAX_AHEAD_S + 1.0, NOW_S)
    assert is_sound(SUBKEY, value, NOW_S + 1e9, NOW_S), "a signed one is nobody's but the owner's"
    assert not is_sound(b"peer", bytes(70_000), NOW_S, NOW_S)


def dictionary(*entries: tuple[Any, Any, Any], most: Any = None) -> DictionaryDHTValue:
    with DictionaryDHTValue(most).freeze() as found:
        for subkey, value, until_s in entries:
            found.data[subkey] = ValueWithExpiration(value, until_s)
    return found


def test_bad_entry_does_not_affect_the_rest_of_an_answer():
    good, until_s = MSGPackSerializer.dumps("x"), get_dht_time() + 30.0
    answer = dictionary(
        (b"a", good, until_s),
        (b"b", 7, until_s),
        (b"c", b"\xc1", until_s),
        (b"d", good, "x"),
        (5, good, until_s),
        ("text", good, until_s),
        (None, good, until_s),
        most="many",
    )
    found = sound_value(answer, get_dht_time())
    with found.freeze():
        assert {k: e.value for k, e in found.items()} == {b"a": good}
    assert sound_value(dictionary((b"b", 7, until_s)), get_dht_time()) is None
    assert sound_value(7, NOW_S) is None
    assert sound_value(b"\xc1", NOW_S) is None


class Refusing:
    """A validator that raises, as Hivemind's do for keys that are none."""

    def validate(self, record: DHTRecord) -> bool:
        raise ValueError("no key")


def test_node_stores_and_forwards_only_sound_values(monkeypatch: pytest.MonkeyPatch):
    for name in ("call_find", "_validate_record", "_validate_dictionary"):
        monkeypatch.setattr(DHTProtocol, name, getattr(DHTProtocol, name))  # as they were, afterwards
    key = DHTID.generate(source="k")
    answers: Any = {key: (ValueWithExpiration(dictionary((b"b", 7, 1e12)), 1e12), {})}

    async def call_find(self: Any, peer: Any, keys: Any) -> Any:
        return answers

    monkeypatch.setattr(DHTProtocol, "call_find", call_find)
    refuse_unsound_values()
    refuse_unsound_values()  # once
    node: Any = DHTProtocol.__new__(DHTProtocol)
    assert asyncio.run(node.call_find("peer", [key])) == {key: (None, {})}
    answers = None
    assert asyncio.run(node.call_find("peer", [key])) is None
    good, until_s = MSGPackSerializer.dumps(1), get_dht_time() + 30.0
    subkey = MSGPackSerializer.dumps(b"a")
    node.record_validator = None
    assert node._validate_record(b"k", subkey, good, until_s)
    assert node._validate_dictionary(b"k", dictionary((b"a", good, until_s)))
    for value, until in ((7, until_s), (b"\xc1", until_s), (good, math.nan), (good, until_s + 30 * 86400.0)):
        assert not node._validate_record(b"k", subkey, value, until)
        assert not node._validate_dictionary(b"k", dictionary((b"a", value, until)))
    assert not node._validate_record(b"k", b"\xc1", good, until_s), "a subkey that cannot be read"
    text = MSGPackSerializer.dumps("a")
    assert not node._validate_record(b"k", text, good, until_s), (
        "Hivemind orders texts and bytes, which raises"
    )
    assert not node._validate_dictionary(b"k", 7)
    node.record_validator = Refusing()
    assert not node._validate_record(b"k", subkey, good, until_s), "what a validator raises is a refusal"


def test_in_a_closed_swarm_a_value_cannot_replace_a_dictionary():
    validator = OrdersValidator("run", generate_run_key()[1])
    key = DHTID.generate(source="run_orch_members").to_bytes()
    value = MSGPackSerializer.dumps(1)
    assert not validator.validate(DHTRecord(key, MSGPackSerializer.dumps(None), value, NOW_S))
    assert validator.validate(DHTRecord(key, MSGPackSerializer.dumps(SUBKEY), value, NOW_S))


@pytest.mark.parametrize(
    "value",
    [
        GOOD,
        WITH_WEIGHTS,
        None,
        (*GOOD[:3], 3.0, GOOD[4]),
        [*GOOD],
        GOOD[:4],
        "x",
        (*GOOD[:2], "asleep", *GOOD[3:]),
        (*GOOD, "0123"),
        (*GOOD, 7),
        (*WITH_WEIGHTS, "x"),
    ],
)
def test_nodes_accept_only_well_formed_announcements(value: Any):
    good = value is None or value is GOOD or value is WITH_WEIGHTS  # 3.0 == 3
    try:
        parsed = OrchSchema.parse_obj(
            {"orch_epochs": {}, "orch_evaluations": {}, "orch_members": {SUBKEY: value}}
        )
        taken = parsed.dict()["orch_members"] == {SUBKEY: value}
    except ValueError:
        taken = False
    assert taken is good
