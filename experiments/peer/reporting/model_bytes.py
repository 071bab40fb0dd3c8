"""What this peer hands over of the model, by destination: a ledger beside the kernel's.

The kernel counts every byte that leaves this VM; which of them are gradients or a state, and which the DHT's, it cannot
say. In an emulated run only the first grow with the model. All of them pass Hivemind's streams as tensors, whatever
averages and whoever downloads; so they are counted there, as they are handed to p2pd, without headers and without what
says what they are. The averagers are processes forked from the peer's: the counts lie in memory shared with them.
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

_ENTRY = struct.Struct("<B47pQ")  # (used, peer id, bytes)
_PEERS = 512  # twice the addresses that an emulated cloud has
_LAST = _ENTRY.size * (_PEERS - 1)  # where all are counted for whom there is no room


class ModelBytes:
    """Bytes by peer, cumulative; the same in this process and those forked from it. Without room: unknown."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ENTRY.size * _PEERS)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._places: dict[bytes, int] = {}

    def add(self, peer_id: bytes, count: int) -> None:
        """So many more went to that peer (its id's bytes)."""
        with self._lock:
            at = self._place(peer_id)
            _, _, before = _ENTRY.unpack_from(self._memory, at)
            _ENTRY.pack_into(self._memory, at, 1, peer_id, before + count)

    def _place(self, peer_id: bytes) -> int:
        if peer_id not in self._places:  # another process may have made it
            for at in range(0, _LAST, _ENTRY.size):
                used, found, _ = _ENTRY.unpack_from(self._memory, at)
                if not used or found == peer_id:
                    self._places[peer_id] = at
                    break
        return self._places.get(peer_id, _LAST)

    def by_peer(self) -> dict[str, int] | None:
        """Bytes so far by peer id (base58); None: there were more peers than there is room for."""
        with self._lock:
            rows = list(_ENTRY.iter_unpack(self._memory[:]))
        if rows[-1][0]:
            return None
        return {str(PeerID(peer)): count for used, peer, count in rows if used}


def count_tensors(ledger: ModelBytes) -> None:
    """From now on Hivemind's streams, in this process and those forked from it, count the tensors they send."""
    streams: Any = P2P
    add_handler, open_stream = streams._add_protobuf_stream_handler, streams._iterate_protobuf_stream_handler

    async def counted(peer: Any, messages: Any) -> AsyncIterator[Any]:
        # a generator is closed with this one, not when it is collected
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
    """Bytes by IP address, loopback left out as the meter does; a peer without a known one until it has one."""
    found: dict[str, int] = {}
    for peer, count in counted.items():
        address = addresses.get(peer)
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            found[address] = found.get(address, 0) + count
    return found


def address_of(maddrs: Iterable[str]) -> dict[str, str]:
    """Peer id -> IP address, from addresses like /ip4/10.0.0.2/tcp/31000/p2p/Qm...; others are passed over."""
    found: dict[str, str] = {}
    for maddr in maddrs:
        parts = maddr.split("/")
        if len(parts) >= 7 and parts[1] in ("ip4", "ip6") and parts[-2] == "p2p":
            found[parts[-1]] = parts[2]
    return found


def _tensor_bytes(message: Any) -> int:
    part = getattr(message, "tensor_part", None)
    return 0 if part is None else len(part.buffer)
