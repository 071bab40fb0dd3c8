"""A split swarm of two reconnects by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hivemind.utils import get_dht_time
from hivemind_here import apart
from peer_rig import config_of

from experiments.peer.swarm.dht_node import start_dht
from experiments.peer.swarm.membership import Membership
from experiments.wire.dht_records import subkey_of
from experiments.wire.record_keys import generate_record_key

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]
KEY = generate_record_key()[1]


async def _forget(_dht: Any, node: Any) -> int:
    """Remove every peer from the routing table, as missed responses do. Runs in the DHT's process."""
    table = node.protocol.routing_table
    uids = list(table.uid_to_peer_id)
    for uid in uids:
        del table[uid]
    return len(uids)


async def _linked(_dht: Any, node: Any) -> int:
    return len(node.protocol.routing_table.uid_to_peer_id)


def wait_for(what: Callable[[], bool], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def split_and_heal(folder: Path) -> list[int]:
    """Heal counts of both peers, once a record stored after the split has reached the other one."""
    first = config_of("a", "", ())
    dht_a, maddr_a = start_dht(first, folder / "a.key")
    second = config_of("b", "", (), initial_peers=(maddr_a,))
    dht_b, maddr_b = start_dht(second, folder / "b.key")
    reported: list[int] = []
    members = [
        Membership(dht, config, maddr, reported.append, subkey=subkey_of(config.vm, KEY), period_s=0.5)
        for dht, config, maddr in ((dht_a, first, maddr_a), (dht_b, second, maddr_b))
    ]
    for member in members:
        member.start()
    wait_for(lambda: all(len(m.members) == 2 and m._linked for m in members))
    assert [dht.run_coroutine(_forget) for dht in (dht_a, dht_b)] == [1, 1]
    wait_for(lambda: [dht.run_coroutine(_linked) for dht in (dht_a, dht_b)] == [1, 1])
    members[0].announce("training", 7)
    wait_for(lambda: any(m.vm == first.vm and m.epoch == 7 for m in members[1].members))
    heals = [member.heals for member in members]
    assert max(reported) == max(heals)
    return heals


def split_only(folder: Path) -> Any:
    """The record stored by one peer after the split, as read by the other."""
    config = config_of("a", "", ())
    dht_a, maddr_a = start_dht(config, folder / "a.key")
    dht_b, _ = start_dht(config_of("b", "", (), initial_peers=(maddr_a,)), folder / "b.key")
    assert [dht.run_coroutine(_forget) for dht in (dht_a, dht_b)] == [1, 1]
    dht_a.store("key", subkey="x", value=1, expiration_time=get_dht_time() + 30)
    return dht_b.get("key", latest=True)


def test_peers_that_dropped_each_other_relink() -> None:
    assert sum(apart(split_and_heal)) >= 1  # the first ping puts each back into the other's table


def test_without_membership_they_stay_apart() -> None:
    """If this fails, Hivemind relinks dropped peers by itself, and the healing can be removed."""
    assert apart(split_only) is None
