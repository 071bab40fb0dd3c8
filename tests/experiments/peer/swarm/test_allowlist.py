"""Strangers in a closed swarm get nothing and stall no peer; the same calls by a member succeed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from closed_swarm import ClosedSwarm, Stranger
from peer_rig import serve_folder

from cloud.storage.digits import write_shards

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

_WINDOW_S = 10.0


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[ClosedSwarm]:
    made = write_shards(tmp_path / "shards", 4, samples_per_shard=256)
    with serve_folder(tmp_path / "shards") as endpoint:
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        swarm = ClosedSwarm(tmp_path / "swarm", endpoint, shards, **ClosedSwarm.QUICK)
        try:
            yield swarm
        finally:
            swarm.close()


def window(swarm: ClosedSwarm, seconds: float) -> tuple[float, float]:
    """Measure the slower peer's epochs per second over `seconds`; returns them and the unix time of the start."""
    began_s, before = time.time(), [p.status()["epoch"] for p in swarm.peers.values()]
    began = time.monotonic()
    time.sleep(seconds)
    made = [p.status()["epoch"] - b for p, b in zip(swarm.peers.values(), before, strict=True)]
    return min(made) / (time.monotonic() - began), began_s


def test_strangers_get_nothing_and_do_not_stall_the_swarm(swarm: ClosedSwarm) -> None:
    swarm.gather("a", "b")
    strangers = [Stranger(swarm, what, _WINDOW_S) for what in ("calls", "join", "flood")]
    try:
        time.sleep(8.0)  # they load their libraries
        quiet, began_s = window(swarm, _WINDOW_S)
        for stranger in strangers:
            stranger.go()
        under_attack, _ = window(swarm, _WINDOW_S)
        calls, join, flood = (stranger.result(40.0) for stranger in strangers)
    finally:
        for stranger in strangers:
            stranger.close()
    print(f"epochs/s quiet {quiet:.3f}, under attack {under_attack:.3f}; {flood}")
    assert set(calls.values()) == {None}, calls
    assert set(join.values()) == {None}, join
    assert flood["made"] > 50
    assert flood["answered"] == 0
    epochs = [e for e in swarm.epochs() if e["began_s"] > began_s]
    assert len(epochs) >= 8
    assert {(e["group_size"], e["dropped"]) for e in epochs} == {(2, "")}
    assert under_attack > 0.5 * quiet
    assert swarm.rejected() == []
    for peer in swarm.peers.values():
        assert any(text.startswith("strangers refused: ") for text in peer.status()["warnings"])

    # The same calls by a listed peer succeed, so it was the allowlist that refused them.
    swarm.allow("c")
    swarm.order()
    time.sleep(4.0)
    got = Stranger(swarm, "calls", identity=swarm.identity_of("c")).go().result(40.0)
    assert got["ping"] == "PingResponse"
    assert got["find"] == "FindResponse"
    assert got["store"] == "stored"
    assert got["store old orders"] == got["store forged orders"] == "not stored"
    wrong = ("for months", "what nobody can read", "another's announcement", "over all announcements")
    assert {got[f"store {what}"] for what in wrong} == {"not stored"}, "a member is not believed everything"
    assert got["join_group"] in ("BAD_SCHEMA_HASH", "NOT_LOOKING_FOR_GROUP")
    assert got["aggregate_part"] == "BAD_GROUP_ID"
    assert got["offer_state"] == got["take_state"] == "DownloadData"
    swarm.order(without=("c",))
    time.sleep(4.0)
    got = Stranger(swarm, "calls", identity=swarm.identity_of("c")).go().result(40.0)
    assert set(got.values()) == {None}
