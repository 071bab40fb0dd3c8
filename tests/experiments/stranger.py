"""A foreign Hivemind peer that knows some addresses and the experiment's name, and takes what it can get.

`python stranger.py ORDER.json` writes result.json beside it: what each attempt got, None or 0 for nothing.
Plain Hivemind, none of the project's guards.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import hivemind
import torch
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.multiaddr import Multiaddr

from experiments.peer.averaging.gradient_averager import RoundAverager
from experiments.peer.config import PeerConfig
from experiments.peer.optimizer.build import build_optimizer
from experiments.peer.processes import kill_descendants, record_descendants
from experiments.peer.reporting.publish import use_record_key
from experiments.peer.state.server import StateDonor
from experiments.peer.training.task import build_runner
from experiments.wire.hivemind.sockets import short_socket_folder

_FLOOD_AT_ONCE = 32


def main(path: Path) -> None:
    """Make the attempts that the order names."""
    order = json.loads(path.read_text())
    config = PeerConfig(**order["config"])
    short_socket_folder()
    while not Path(order["go"]).exists():  # the imports are no part of what it does to the swarm
        time.sleep(0.05)
    use_record_key(path.with_name("record.key"))
    torch.set_num_threads(1)
    work = {"calls": calls, "join": join, "flood": flood}[order["what"]]
    got = work(order, config, path.with_name("identity.key"))
    fresh = path.with_name("result.new")
    fresh.write_text(json.dumps(got))
    fresh.replace(path.with_name("result.json"))
    record_descendants()
    kill_descendants()
    os._exit(0)  # what Hivemind leaves open would be waited for


def calls(order: dict[str, Any], config: PeerConfig, identity: Path) -> dict[str, Any]:
    """Every call that Hivemind's servicers have, one by one."""
    return asyncio.run(_calls(order, config, identity))


async def _calls(order: dict[str, Any], config: PeerConfig, identity: Path) -> dict[str, Any]:
    p2p = await _node(identity)
    peer = await _connect(p2p, order["maddrs"][0])
    run = config.run_id
    dht = _stub(DHTProtocol, p2p, peer, None)
    state = _stub(StateDonor, p2p, peer, f"{run}_state_averager")
    gradients = _stub(RoundAverager, p2p, peer, f"{run}_grad_averager")
    me = dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes())

    def store(key: str, value: bytes, expires_s: float, subkey: object = None) -> dht_pb2.StoreRequest:
        return dht_pb2.StoreRequest(
            keys=[DHTID.generate(source=key).to_bytes()],
            subkeys=[MSGPackSerializer.dumps(subkey)],
            values=[value],
            expiration_time=[expires_s],
            in_cache=[False],
            peer=me,
        )

    soon = get_dht_time() + 60.0
    old, new = (base64.b64decode(order[name]) for name in ("old_orders", "new_orders"))
    announced = (f"{run}-a-0", "a", "serving", 9, order["maddrs"][0])
    keys = [f"{run}_progress", f"{run}_orch_members", f"{run}_orders", f"{run}_orch_epochs"]
    find = dht_pb2.FindRequest(keys=[DHTID.generate(source=k).to_bytes() for k in keys], peer=me)
    join = averaging_pb2.JoinRequest(
        schema_hash=b"x" * 32,
        expiration=soon,
        gather=b"",
        client_mode=False,
        group_key=f"{run}_grad_averager.0b",
    )
    part = averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"g" * 20)
    take = averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps(("state", 0, "", 0)))
    attempts = {
        "ping": lambda: dht.rpc_ping(dht_pb2.PingRequest(peer=me), timeout=5.0),
        "find": lambda: dht.rpc_find(find, timeout=5.0),
        "store": lambda: dht.rpc_store(
            store(f"{run}_x", MSGPackSerializer.dumps(1), soon, b"x"), timeout=5.0
        ),
        "store for months": lambda: dht.rpc_store(
            store(f"{run}_x", MSGPackSerializer.dumps(1), soon + 1e7, b"x"), timeout=5.0
        ),
        "store what nobody can read": lambda: dht.rpc_store(
            store(f"{run}_x", b"\xc1", soon, b"y"), timeout=5.0
        ),
        "store another's announcement": lambda: dht.rpc_store(
            store(f"{run}_orch_members", MSGPackSerializer.dumps(announced), soon, announced[0].encode()),
            timeout=5.0,
        ),
        "store over all announcements": lambda: dht.rpc_store(
            store(f"{run}_orch_members", MSGPackSerializer.dumps(1), soon + 3600.0), timeout=5.0
        ),
        "store forged orders": lambda: dht.rpc_store(
            store(f"{run}_orders", MSGPackSerializer.dumps(new[:64] + old[64:]), soon), timeout=5.0
        ),
        "store old orders": lambda: dht.rpc_store(
            store(f"{run}_orders", MSGPackSerializer.dumps(old), soon), timeout=5.0
        ),
        "store too much": lambda: dht.rpc_store(
            store(f"{run}_x", MSGPackSerializer.dumps(b"x" * 3_000_000), soon), timeout=5.0
        ),
        "join_group": lambda: _first(gradients.rpc_join_group(join)),
        "aggregate_part": lambda: _first(gradients.rpc_aggregate_part(_stream(part))),
        "offer_state": lambda: state.rpc_offer_state(averaging_pb2.DownloadRequest(), timeout=5.0),
        "take_state": lambda: _first(state.rpc_take_state(take)),
    }
    got: dict[str, Any] = {}
    for name, attempt in attempts.items():
        began = time.monotonic()
        got[name] = await _attempt(p2p, order["maddrs"][0], attempt)
        print(f"{name}: {got[name]} after {time.monotonic() - began:.1f} s", file=sys.stderr)
    await p2p.shutdown()
    return got


def join(order: dict[str, Any], config: PeerConfig, identity: Path) -> dict[str, Any]:
    """A whole hivemind.Optimizer of the run's name and shape: train, average, download the state."""
    got: dict[str, Any] = {}
    try:
        hivemind.DHT(initial_peers=order["maddrs"], start=True, wait_timeout=3, **_QUIET).shutdown()
        got["bootstrap"] = "joined"
    except Exception:  # noqa: BLE001 - refused, as it should be
        got["bootstrap"] = None
    dht = hivemind.DHT(
        initial_peers=order["maddrs"],
        ensure_bootstrap_success=False,
        identity_path=str(identity),
        start=True,
        wait_timeout=3,
        **_QUIET,
    )
    parameters = list(build_runner(config).parameters())
    optimizer = build_optimizer(config, dht, parameters)
    end = time.monotonic() + order["seconds"]
    group = 0
    while time.monotonic() < end:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(batch_size=config.batch_size)
        group = max(group, optimizer.take_round().group_size)
        time.sleep(0.2)
    return got | {
        "group": group if group > 1 else None,
        "peers seen": optimizer.tracker.global_progress.num_peers - 1 or None,
        "state": len(optimizer.state_averager.offers()) or None,
        "neighbours": dht.run_coroutine(_neighbours) or None,
    }


def flood(order: dict[str, Any], config: PeerConfig, identity: Path) -> dict[str, Any]:
    """As many calls as it can make for so many seconds."""
    return asyncio.run(_flood(order, identity))


async def _flood(order: dict[str, Any], identity: Path) -> dict[str, Any]:
    p2p = await _node(identity)
    peers = [await _connect(p2p, maddr) for maddr in order["maddrs"]]
    made, answered = 0, 0
    end = time.monotonic() + order["seconds"]

    async def one(maddr: str, peer: Any, size: int) -> None:
        nonlocal made, answered
        stub = _stub(DHTProtocol, p2p, peer, None)
        noise = dht_pb2.StoreRequest(values=[b"x" * size])
        while time.monotonic() < end:
            made += 1
            try:
                await stub.rpc_store(noise, timeout=2.0)
                answered += 1
            except Exception:  # noqa: BLE001 - refused or cut off: connect again, go on
                try:
                    await asyncio.wait_for(_connect(p2p, maddr), 2.0)
                except Exception:  # noqa: BLE001
                    await asyncio.sleep(0.01)

    places = list(zip(order["maddrs"], peers, strict=True))
    await asyncio.gather(
        *(one(*places[i % len(places)], size=100_000 if i % 8 == 0 else 10) for i in range(_FLOOD_AT_ONCE))
    )
    await p2p.shutdown()
    return {"made": made, "answered": answered}


_QUIET: dict[str, Any] = {
    "host_maddrs": ["/ip4/127.0.0.1/tcp/0"],
    "use_relay": False,
    "auto_nat": False,
    "nat_port_map": False,
    "shutdown_timeout": 2,
}


async def _node(identity: Path) -> P2P:
    return await P2P.create(
        identity_path=str(identity),
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        use_relay=False,
        auto_nat=False,
        nat_port_map=False,
        check_if_identity_free=False,
        idle_timeout=600,
    )


async def _connect(p2p: P2P, maddr: str) -> PeerID:
    peer = PeerID.from_base58(maddr.rpartition("/p2p/")[2])
    await p2p._client.connect(peer, [Multiaddr(maddr.rpartition("/p2p/")[0])])  # type: ignore[union-attr]
    return peer


def _stub(servicer: Any, p2p: P2P, peer: PeerID, namespace: str | None) -> Any:
    servicer._collect_rpc_handlers()
    return servicer._stub_type(p2p, peer, namespace)


async def _stream(message: Any) -> Any:
    """One message; its stream ends only after the answer, which is lost if the peer closes the stream before it has read
    that end."""
    yield message
    await asyncio.sleep(3.0)


async def _first(opening: Any) -> Any:
    stream = await opening
    async for message in stream:
        return message
    return None


async def _attempt(p2p: P2P, maddr: str, attempt: Any) -> str | None:
    """What came back, or None. The connection may have been cut: it connects anew before each."""
    try:
        await asyncio.wait_for(_connect(p2p, maddr), 5.0)
        message = await asyncio.wait_for(attempt(), 15.0)
    except Exception as error:  # noqa: BLE001 - refused in whatever way: nothing was obtained
        print(f"{error!r}", file=sys.stderr)
        return None
    if isinstance(message, dht_pb2.StoreResponse):
        return "stored" if any(message.store_ok) else "not stored"
    if isinstance(message, averaging_pb2.MessageFromLeader | averaging_pb2.AveragingData):
        return averaging_pb2.MessageCode.Name(message.code)
    return None if message is None else type(message).__name__


async def _neighbours(_dht: Any, node: Any) -> int:
    return len(node.protocol.routing_table.uid_to_peer_id)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
