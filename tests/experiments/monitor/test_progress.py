"""Hivemind's progress reports turned into rows; what the monitor writes and reads back."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from typing import Any

import dht_entries as entries
import pytest
from hivemind.p2p import PeerID

from experiments.monitor.acceptance import Verifier
from experiments.monitor.progress import ProgressBoard
from experiments.monitor.roster import Roster
from experiments.monitor.sink import Sink, line_of, read_accepted, read_rejected
from experiments.wire.hivemind.sockets import SocketFolderError, short_socket_folder
from experiments.wire.record_keys import generate_identity, generate_record_key

NOW_S = entries.NOW_S
_peer = functools.cache(entries.Peer)
_LIBP2P = PeerID(b"\x12\x20" + b"p" * 32)


def _report(peer, epoch, samples, sps=10.0, at_s=NOW_S, expiration=None, **more):
    value = {"peer_id": _LIBP2P.to_bytes(), "epoch": epoch, "samples_accumulated": samples}
    value |= {"samples_per_second": sps, "time": at_s, "client_mode": False} | more
    marker = peer.subkey[peer.subkey.index(b"[") :]
    expiration = at_s + 60 if expiration is None else expiration
    return peer.entry(value, subkey=marker, field="progress", expiration=expiration)


def _board():
    return ProgressBoard(entries.RUN_KEY, 1000, Verifier())


def _roster(**more):
    return Roster(replace(_peer(name).on_roster, **more) for name in ("a", "b"))


def test_the_swarm_is_the_sum_of_those_in_its_newest_epoch():
    board = _board()
    assert (
        board.offer([_report(_peer("a"), 4, 300, 20.0), _report(_peer("b"), 3, 900, 10.0)], _roster(), NOW_S)
        == []
    )
    a, b, swarm = board.rows(NOW_S + 5)
    assert (a.vm, a.epoch, a.samples, a.sps, a.peers, a.eta_s) == ("run-a-0", 4, 300, 20.0, 1, None)
    assert (b.vm, b.epoch, b.samples) == ("run-b-0", 3, 900)
    assert (swarm.vm, swarm.epoch, swarm.samples, swarm.sps, swarm.peers) == ("", 4, 300, 30.0, 2)
    assert swarm.eta_s == pytest.approx((1000 - 300 - 5 * 20.0) / 30.0)


def test_zero_rate_has_no_remaining_time():
    board = _board()
    board.offer([_report(_peer("a"), 0, 0, 0.0)], _roster(), NOW_S)
    assert board.rows(NOW_S)[-1].eta_s is None
    assert _board().rows(NOW_S) == []


def test_newer_reports_replace_older_ones_and_silent_peers_are_not_alive():
    board, a = _board(), _peer("a")
    new, old = _report(a, 2, 50), _report(a, 1, 900, at_s=NOW_S - 20)
    assert board.offer([new, old], _roster(), NOW_S) == []
    assert [r.epoch for r in board.alive(NOW_S)] == [2]
    assert board.offer([new, old], _roster(), NOW_S + 20) == []  # read again, and nothing newer
    assert board.alive(NOW_S + 31) == []


@pytest.mark.parametrize("skew_s", [-3600.0, -31.0, 0.0, 31.0, 3600.0])
def test_liveness_is_judged_by_time_of_receipt(skew_s):
    board, a = _board(), _peer("a")
    for n in range(20):
        report = _report(a, 2, 50 * n, at_s=NOW_S + skew_s + 15.0 * n)
        assert board.offer([report], _roster(), NOW_S + 15.0 * n) == []
        [alive] = board.alive(NOW_S + 15.0 * n + 14.9)
        assert alive.samples == 50 * n
    assert board.rows(NOW_S + 15.0 * 19 + 5.0)[-1].eta_s == pytest.approx((1000 - 950 - 5 * 10.0) / 10.0)
    assert board.alive(NOW_S + 15.0 * 19 + 31.0) == []


def test_peer_that_leaves_is_gone_at_once():
    board, a = _board(), _peer("a")
    board.offer([_report(a, 2, 50)], _roster(), NOW_S)
    marker = a.subkey[a.subkey.index(b"[") :]
    board.offer([a.entry(None, subkey=marker, field="progress", expiration=NOW_S + 61)], _roster(), NOW_S)
    assert board.alive(NOW_S) == []


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (lambda a: _report(entries.Peer("z"), 1, 1), "progress: roster"),
        (lambda a: replace(_report(a, 1, 1), value=b"\xc0"), "progress: signature"),
        (lambda a: _report(a, -1, 1), "progress: schema"),
        (lambda a: _report(a, 1, 1, math.nan), "progress: schema"),
        (lambda a: _report(a, 1, 1, math.inf), "progress: values"),
        (lambda a: _report(a, 1, 2**62), "progress: values"),
        (lambda a: _report(a, 2**63, 1), "progress: values"),
        (lambda a: _report(a, 1, 1, peer_id=b"x" * 5000), "progress: size"),
        (lambda a: _report(a, 1, 1, peer_id=b"another"), "progress: identity"),
    ],
)
def test_invalid_progress_is_rejected(entry, reason):
    board, roster = _board(), _roster(peer_id=_LIBP2P.to_base58())
    raw = entry(_peer("a"))
    assert [one.reason for one in board.offer([raw], roster, NOW_S)] == [reason]
    assert board.offer([raw], roster, NOW_S) == []  # counted once
    assert board.alive(NOW_S) == []


def test_lines_survive_a_crash_and_come_back(tmp_path):
    path = tmp_path / "monitor.jsonl"
    [one, two] = _peer("a").reports(1, 2)
    two = replace(two, epoch=replace(two.epoch, loss=None))
    sink = Sink(path)
    sink.write([line_of(one), {"kind": "swarm", "at_s": 1.0, "alive": []}])
    sink.close()
    with path.open("a") as file:
        file.write('{"kind": "epoch", "cut')
    sink = Sink(path)
    sink.write([line_of(two), {"kind": "rejected", "at_s": 2.0, "reason": "size", "vm": "", "count": 3}])
    sink.close()
    assert read_rejected(path) == {"size": 3}
    assert path.read_text().endswith("\n")
    first, second = read_accepted(path)
    assert first == one
    assert second == two
    assert json.loads(path.read_text().splitlines()[0])["egress"][0]["dst_address"] == "10.0.0.2"


def test_keys_are_hiveminds_own():
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from hivemind.utils.crypto import RSAPublicKey

    identity, peer_id = generate_identity()
    assert PeerID.from_identity(identity).to_base58() == peer_id
    pem, public = generate_record_key()
    assert RSAPublicKey.from_bytes(public.encode()).to_bytes() == public.encode()
    key: Any = load_pem_private_key(pem, None).public_key()
    numbers = key.public_numbers()
    assert RSAPublicKey.from_bytes(public.encode())._public_key.public_numbers() == numbers


def test_sockets_go_to_the_temporary_folder(tmp_path, monkeypatch):
    from hivemind.p2p import P2P

    monkeypatch.setattr(P2P, "_UNIX_SOCKET_PREFIX", P2P._UNIX_SOCKET_PREFIX)
    monkeypatch.setenv("TMPDIR", "/tmp/short")
    assert str(short_socket_folder()) == "/tmp/short"
    assert P2P._UNIX_SOCKET_PREFIX == "/unix/tmp/short/hivemind-"
    monkeypatch.setenv("TMPDIR", "/" + "long/" * 20)
    with pytest.raises(SocketFolderError, match="shorter"):
        short_socket_folder()
