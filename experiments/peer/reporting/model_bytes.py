"""Bytes of model data (gradients and states) sent, by destination, counted in addition to the kernel's counters.

The kernel counts every byte that leaves this VM but cannot distinguish model data from DHT traffic. In an emulated run
only the model data grow with the model. All of them pass through Hivemind's streams as tensors, whatever the averaging
method or download. So they are counted there, when they are passed to p2pd, without headers and metadata. The averagers
run in processes forked from the peer's, so the counts are kept in memory shared with them.

The levels that an 8-bit format sends with each part are not counted: their number is that of the parts, which does not grow
with the model as emulated parts are smaller than real ones. What an emulated run sends of them stays unscaled.
"""

from __future__ import annotations

import contextlib
import ipaddress
import mmap
import multiprocessing
import struct
from collections.abc import AsyncIterator, Iterable
from typing import Any

from hivemind.p2p import P2P, PeerID
from hivemind.proto.runtime_pb2 import BLOCKWISE_8BIT, UNIFORM_8BIT  # type: ignore[attr-defined]

_ENTRY = struct.Struct("<B47pQ")  # (used, peer id, bytes)
_PEERS = 512  # twice the number of addresses of an emulated cloud
_LAST = _ENTRY.size * (_PEERS - 1)  # the entry shared by all peers for which there is no room
# Bytes of a part that do not depend on its size: one or two counts (int64) and 256 levels (float32).
_LEVELS_BYTES = {UNIFORM_8BIT: 8 + 1024, BLOCKWISE_8BIT: 16 + 1024}


class ModelBytes:
    """Cumulative bytes by peer, shared by this process and those forked from it. Unknown if there are too many peers."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ENTRY.size * _PEERS)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._places: dict[bytes, int] = {}

    def add(self, peer_id: bytes, count: int) -> None:
        """Add `count` bytes sent to a peer (raw peer id)."""
        with self._lock:
            at = self._place(peer_id)
            _, _, before = _ENTRY.unpack_from(self._memory, at)
            _ENTRY.pack_into(self._memory, at, 1, peer_id, before + count)

    def _place(self, peer_id: bytes) -> int:
        if peer_id not in self._places:  # another process may have added it
            for at in range(0, _LAST, _ENTRY.size):
                used, found, _ = _ENTRY.unpack_from(self._memory, at)
                if not used or found == peer_id:
                    self._places[peer_id] = at
                    break
        return self._places.get(peer_id, _LAST)

    def by_peer(self) -> dict[str, int] | None:
        """Bytes by peer id (base58); None if there were more peers than entries."""
        with self._lock:
            rows = list(_ENTRY.iter_unpack(self._memory[:]))
        if rows[-1][0]:
            return None
        return {str(PeerID(peer)): count for used, peer, count in rows if used}


def count_tensors(ledger: ModelBytes) -> None:
    """Make Hivemind's streams, in this process and those forked from it, count the tensors they send."""
    streams: Any = P2P
    add_handler, open_stream = streams._add_protobuf_stream_handler, streams._iterate_protobuf_stream_handler

    async def counted(peer: Any, messages: Any) -> AsyncIterator[Any]:
        # close the inner generator together with this one, not when it is garbage-collected
        async with contextlib.aclosing(messages) if hasattr(messages, "aclose") else contextlib.nullcontext():
            async for message in messages:
                if size := _tensor_bytes(message):
                    ledger.add(peer.to_bytes(), size)
                yield message

    async def _add_protobuf_stream_handler(
        self: Any, name: str, handler: Any, *args: Any, **kwargs: Any
    ) -> None:
        def answering(requests: Any, context: Any) -> AsyncIterator[Any]:
            return counted(context.remote_id, handler(requests, context))

        await add_handler(self, name, answering, *args, **kwargs)

    async def _iterate_protobuf_stream_handler(
        self: Any, peer_id: Any, name: str, requests: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return await open_stream(self, peer_id, name, counted(peer_id, requests), *args, **kwargs)

    streams._add_protobuf_stream_handler = _add_protobuf_stream_handler
    streams._iterate_protobuf_stream_handler = _iterate_protobuf_stream_handler


def by_address(counted: dict[str, int], addresses: dict[str, str]) -> dict[str, int]:
    """Sum up bytes by IP address. Loopback is excluded, as in the meter, and so are peers whose address is unknown."""
    found: dict[str, int] = {}
    for peer, count in counted.items():
        address = addresses.get(peer)
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            found[address] = found.get(address, 0) + count
    return found


def address_of(maddrs: Iterable[str]) -> dict[str, str]:
    """Map peer ids to IP addresses, from multiaddrs like /ip4/10.0.0.2/tcp/31000/p2p/Qm...; others are skipped."""
    found: dict[str, str] = {}
    for maddr in maddrs:
        parts = maddr.split("/")
        if len(parts) >= 7 and parts[1] in ("ip4", "ip6") and parts[-2] == "p2p":
            found[parts[-1]] = parts[2]
    return found


def _tensor_bytes(message: Any) -> int:
    part = getattr(message, "tensor_part", None)
    if part is None:
        return 0
    return max(0, len(part.buffer) - _LEVELS_BYTES.get(part.compression, 0))
