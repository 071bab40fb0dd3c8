"""The program of a VM that downloads every peer's weights like a joining peer and compares them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch


def main(config_path: str) -> int:
    """`config.json`: run_id, peers {name: multiaddr}, listen_address, listen_port, silence_s, limit_s.

    Writes result.json, then status.json."""
    path = Path(config_path)
    config = json.loads(path.read_text())
    from experiments.wire.hivemind.sockets import short_socket_folder

    short_socket_folder()
    torch.set_num_threads(1)
    result = asyncio.run(_compare(config))
    path.with_name("result.json").write_text(json.dumps(result))
    path.with_name("status.json").write_text('{"phase": "done"}')
    os._exit(0)  # p2pd ends with the VM


async def _compare(config: dict[str, Any]) -> dict[str, Any]:
    from hivemind.p2p import P2P

    from experiments.peer.state.server import open_from

    p2p = await P2P.create(
        initial_peers=list(config["peers"].values()),
        host_maddrs=[f"/ip4/{config['listen_address']}/tcp/{config['listen_port']}"],
        use_relay=False,
        auto_nat=False,
        nat_port_map=False,
        startup_timeout=60.0,
    )
    open_stream = open_from(p2p, f"{config['run_id']}_state_averager")
    weights: dict[str, torch.Tensor] = {}
    epochs: dict[str, int] = {}
    errors: dict[str, str] = {}

    async def one(name: str, maddr: str) -> None:
        try:
            donor = maddr.rsplit("/p2p/", 1)[1]
            epochs[name], weights[name] = await asyncio.wait_for(
                _weights(open_stream, donor, config["silence_s"]), config["limit_s"]
            )
        except Exception as error:  # noqa: BLE001 - errors are part of the result
            errors[name] = repr(error)

    await asyncio.gather(*(one(name, maddr) for name, maddr in config["peers"].items()))
    with contextlib.suppress(Exception):  # the weights are downloaded; leftovers are checked for later
        await p2p.shutdown()
    return {"epochs": epochs, "errors": errors, **_distances(weights)}


async def _weights(open_stream: Any, donor: str, silence_s: float) -> tuple[int, torch.Tensor]:
    """Download the epoch and the weights, which are the first part of the state."""
    from hivemind.utils import MSGPackSerializer

    from experiments.peer.state.client import BlobRequest
    from experiments.peer.state.encoding import aligned, unpack

    stream = await open_stream(donor, BlobRequest("state", 1))
    async with contextlib.aclosing(stream):
        first = await asyncio.wait_for(anext(stream), silence_s)
        if first.refused:
            raise ValueError(first.refused)
        read: Any = MSGPackSerializer.loads(first.header)
        about, layout = read
        body, have = torch.zeros(first.total, dtype=torch.uint8), 0
        while have < sum(aligned(size) for _, size in layout[: about["weights"]]):
            chunk = await asyncio.wait_for(anext(stream), silence_s)
            body[have : have + len(chunk.data)] = torch.frombuffer(bytearray(chunk.data), dtype=torch.uint8)
            have += len(chunk.data)
    tensors = unpack(first.header, body)[1][: about["weights"]]
    return about["epoch"], torch.cat([tensor.flatten() for tensor in tensors])


def _distances(weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Compute the largest difference between weights, in units of the float16 rounding of the largest weight."""
    if len(weights) < 2:
        return {"apart": None, "equal_to_first": {}}
    names = sorted(weights)
    first = weights[names[0]]
    if any(w.shape != first.shape or not bool(w.isfinite().all()) for w in weights.values()):
        return {"apart": float("inf"), "equal_to_first": {}}
    rounding = float(first.abs().max()) * 2.0**-11
    most = max(float((weights[name] - first).abs().max()) for name in names)
    return {
        "apart": most / rounding if rounding else most,
        "equal_to_first": {name: bool(torch.equal(weights[name], first)) for name in names},
    }
