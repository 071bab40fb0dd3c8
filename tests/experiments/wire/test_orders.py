"""Orders: what was signed comes back, and nothing else passes."""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given
from hypothesis import strategies as st

from experiments.wire.orders import (
    MAX_BYTES,
    MAX_PEERS,
    OrderPeer,
    Orders,
    OrdersError,
    generate_run_key,
    record_key_digest,
    sign,
    verify,
)
from experiments.wire.record_keys import generate_record_key

PEM, PUBLIC = generate_run_key()
OTHER_PEM, OTHER_PUBLIC = generate_run_key()
ORDERS = Orders("run-1", 7, 1000.0, 1600.0, False, (OrderPeer("run-1-a-0", "QmA", "k"),))

_text = st.text(max_size=40)
_name = st.text(min_size=1, max_size=40)
_peers = st.lists(
    st.builds(OrderPeer, _name, _name, _text),
    max_size=12,
    unique_by=(lambda p: p.vm, lambda p: p.peer_id),
).map(tuple)
_orders = st.builds(
    lambda run, version, issued, lease, paused, peers, last: Orders(
        run, version, issued, issued + lease, paused, peers, last
    ),
    _text,
    st.integers(0, 10**15),
    st.floats(0, 4e9),
    st.floats(0, 1e6),
    st.booleans(),
    _peers,
    st.none() | st.integers(1, 10**9),
)


def _reason(blob: bytes, public: str = PUBLIC, run: str = "run-1", newest: int = -1) -> str:
    with pytest.raises(OrdersError) as caught:
        verify(blob, public, run, newest)
    return caught.value.reason


@given(_orders)
def test_what_was_signed_comes_back(orders: Orders) -> None:
    blob = sign(orders, PEM)
    assert verify(blob, PUBLIC, orders.run_id, -1) == orders
    assert verify(blob, PUBLIC, orders.run_id, orders.version) == orders  # the same again is no replay


@given(_orders, st.data())
def test_changed_byte_is_rejected(orders: Orders, data: st.DataObject) -> None:
    blob = bytearray(sign(orders, PEM))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    assert _reason(bytes(blob), run=orders.run_id) == "signature"


@given(st.binary(max_size=2 * MAX_BYTES))
def test_noise_is_rejected(blob: bytes) -> None:
    assert _reason(blob) in {"signature", "size"}


@given(st.binary(max_size=300))
def test_signed_noise_is_rejected_for_its_form(noise: bytes) -> None:
    assert _reason(_signed(noise)) == "form"
    assert _reason(_signed(zlib.compress(noise))) == "form"


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_older_ones_are_refused(version: int, newest: int) -> None:
    blob = sign(replace(ORDERS, version=version), PEM)
    if version < newest:
        assert _reason(blob, newest=newest) == "stale"
    else:
        assert verify(blob, PUBLIC, "run-1", newest).version == version


def test_another_key_another_run_another_size() -> None:
    blob = sign(ORDERS, PEM)
    assert _reason(sign(ORDERS, OTHER_PEM)) == "signature"
    assert _reason(blob, public=OTHER_PUBLIC) == "signature"
    assert _reason(blob, public=generate_record_key()[1]) == "signature"
    assert _reason(blob, public="") == "signature"
    assert _reason(blob, run="run-2") == "run"
    assert _reason(blob + b"\0" * MAX_BYTES) == "size"
    assert _reason(blob[:-1]) == "signature"
    assert _reason(b"") == "signature"


def test_orders_without_a_last_epoch_are_those_of_before_it_existed() -> None:
    assert b'"last"' not in zlib.decompress(sign(ORDERS, PEM)[64:])
    text = zlib.decompress(sign(replace(ORDERS, last_epoch=5), PEM)[64:])
    assert text.endswith(b',"last":5}')
    assert _reason(_signed(zlib.compress(text.replace(b'"last":5', b'"last":null')))) == "form"
    assert _reason(_signed(zlib.compress(text.replace(b'"last":5', b'"last":5.0')))) == "form"


def test_a_small_blob_cannot_unpack_to_a_large_one() -> None:
    assert _reason(_signed(zlib.compress(b" " * 9_000_000))) == "form"


def test_trailing_data_and_unknown_keys_are_rejected() -> None:
    payload = sign(ORDERS, PEM)[64:]
    assert _reason(_signed(payload + b"x")) == "form"
    text = zlib.decompress(payload)
    assert _reason(_signed(zlib.compress(text[:-1] + b',"more":1}'))) == "form"
    assert _reason(_signed(zlib.compress(text.replace(b'"paused":false', b'"paused":0')))) == "form"
    assert _reason(_signed(zlib.compress(text.replace(b'"version":7', b'"version":7.0')))) == "form"


@pytest.mark.parametrize(
    "wrong",
    [
        replace(ORDERS, version=-1),
        replace(ORDERS, last_epoch=0),
        replace(ORDERS, last_epoch=2**61),
        replace(ORDERS, version=2**61),
        replace(ORDERS, lease_until_s=math.nan),
        replace(ORDERS, lease_until_s=math.inf),
        replace(ORDERS, lease_until_s=999.0),
        replace(ORDERS, peers=(*ORDERS.peers, OrderPeer("run-1-a-0", "QmB", ""))),
        replace(ORDERS, peers=(*ORDERS.peers, OrderPeer("run-1-b-0", "QmA", ""))),
        replace(ORDERS, peers=(OrderPeer("", "QmA", ""),)),
        replace(ORDERS, run_id="x" * 200),
    ],
)
def test_orders_that_readers_reject_are_not_signed(wrong: Orders) -> None:
    with pytest.raises(OrdersError) as caught:
        sign(wrong, PEM)
    assert caught.value.reason == "form"


def test_only_the_runs_kind_of_key_signs() -> None:
    for key in (generate_record_key()[0], b"", b"no key"):
        with pytest.raises(OrdersError) as caught:
            sign(ORDERS, key)
        assert caught.value.reason == "signature"


def test_max_peers_fit_and_two_hundred_do_not() -> None:
    def peers(count: int) -> tuple[OrderPeer, ...]:
        return tuple(
            OrderPeer(f"geo-c8-20260101-{i:03d}-0", _peer_id(i), record_key_digest(f"key {i}"))
            for i in range(count)
        )

    assert len(sign(replace(ORDERS, peers=peers(MAX_PEERS + 1)), PEM)) <= MAX_BYTES
    with pytest.raises(OrdersError) as caught:
        sign(replace(ORDERS, peers=peers(200)), PEM)
    assert caught.value.reason == "size"


def _peer_id(seed: int) -> str:
    """As long as a real one, and as little to be compressed."""
    digits = random.Random(seed).choices("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", k=44)
    return "Qm" + "".join(digits)


def _signed(payload: bytes) -> bytes:
    key = serialization.load_pem_private_key(PEM, password=None)
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    return key.sign(b"orch orders 1\n" + payload) + payload
