"""Peer allowlist: only listed peers can call this peer's Hivemind services, and only they are called.

Hivemind's authorizer covers the DHT's calls only. All calls of all servicers (DHT, matchmaking, averaging, state)
pass through `ControlClient`, with the caller's peer id authenticated by libp2p's handshake, so they are checked
there. The averagers and the DHT run in processes forked from the peer's, so the list is kept in memory shared with
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import multiprocessing
import struct
from typing import Any

from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

_HEADER = struct.Struct("<QI")  # version of the list, its size in bytes
_COUNT = struct.Struct("<Q")
# Kinds of refusals: names of incoming calls; "call" is an outgoing call to a peer that is not listed.
_KINDS = (
    *("ping", "store", "find", "join_group", "aggregate_part", "offer_state", "take_state"),
    *("other", "connection", "call"),
)
_LIST_AT = _HEADER.size + _COUNT.size * len(_KINDS)
_MEMORY_BYTES = 64 * 1024  # about 1800 peers, ten times as many as orders can hold


class Allowlist:
    """Allowed peers and refusal counters, shared by this process and those forked from it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MEMORY_BYTES)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._seen, self._allowed = 0, frozenset[bytes]()
        self._listed: frozenset[str] | None = None

    def allow(self, peer_ids: frozenset[str]) -> None:
        """Replace the list (base58 peer ids). Raises ValueError for an invalid peer id or too many peers."""
        if peer_ids == self._listed:
            return
        listed = b"".join(
            bytes([len(raw)]) + raw for raw in (PeerID.from_base58(p).to_bytes() for p in peer_ids)
        )
        if _LIST_AT + len(listed) > _MEMORY_BYTES:
            raise ValueError(f"{len(peer_ids)} peers do not fit into the allowlist")
        with self._lock:
            version, _ = _HEADER.unpack_from(self._memory)
            self._memory[_LIST_AT : _LIST_AT + len(listed)] = listed
            _HEADER.pack_into(self._memory, 0, version + 1, len(listed))
        self._listed = peer_ids

    def allows(self, peer_id: Any) -> bool:
        """Whether the `PeerID` is allowed."""
        if _HEADER.unpack_from(self._memory)[0] != self._seen:
            with self._lock:
                self._seen, size = _HEADER.unpack_from(self._memory)
                listed = self._memory[_LIST_AT : _LIST_AT + size]
            found: set[bytes] = set()
            while listed:
                end = 1 + listed[0]
                found.add(listed[1:end])
                listed = listed[end:]
            self._allowed = frozenset(found)
        return peer_id.to_bytes() in self._allowed

    def refuse(self, kind: str) -> None:
        """Count a refusal."""
        at = _HEADER.size + _COUNT.size * _KINDS.index(kind)
        with self._lock:
            _COUNT.pack_into(self._memory, at, _COUNT.unpack_from(self._memory, at)[0] + 1)

    @property
    def refused(self) -> dict[str, int]:
        """Number of refusals by kind, without zeros."""
        counts = (
            _COUNT.unpack_from(self._memory, _HEADER.size + _COUNT.size * i)[0] for i in range(len(_KINDS))
        )
        return {kind: count for kind, count in zip(_KINDS, counts, strict=True) if count}


_installed: Allowlist | None = None  # read in the forked processes


def install_allowlist(allowlist: Allowlist) -> None:
    """Restrict Hivemind, in this process and those forked from it, to the listed peers.

    A call from an unlisted peer is refused before its request is parsed, and its connection is closed. A call to an
    unlisted peer fails like one to an unreachable peer (P2PDaemonError).
    """
    global _installed
    _installed = allowlist
    client: Any = ControlClient
    add_unary, add_stream = client.add_unary_handler, client.stream_handler
    call_unary, open_stream, connect = client.call_unary_handler, client.stream_open, client.connect
    disconnecting: set[bytes] = set()  # unlisted peers being disconnected by this process

    def reject(control: Any, proto: str, peer_id: Any) -> None:
        allowlist.refuse(_kind_of(proto))
        if (raw := peer_id.to_bytes()) not in disconnecting:
            disconnecting.add(raw)
            task = asyncio.ensure_future(_disconnect(control, peer_id))
            task.add_done_callback(lambda _: disconnecting.discard(raw))

    async def add_unary_handler(self: Any, proto: str, handler: Any, balanced: bool = False) -> None:
        async def guarded(request: bytes, remote_id: Any) -> bytes:
            if not allowlist.allows(remote_id):
                reject(self, proto, remote_id)
                raise PermissionError("not a member of this swarm")
            return await handler(request, remote_id)

        await add_unary(self, proto, guarded, balanced)

    async def stream_handler(self: Any, proto: str, handler_cb: Any, balanced: bool = False) -> None:
        async def guarded(info: Any, reader: Any, writer: Any) -> None:
            if not allowlist.allows(info.peer_id):
                reject(self, proto, info.peer_id)
                writer.close()
                return
            await handler_cb(info, reader, writer)

        await add_stream(self, proto, guarded, balanced)

    def check(peer_id: Any) -> None:
        if not allowlist.allows(peer_id):
            allowlist.refuse("call")
            raise P2PDaemonError(f"{peer_id} is not a member of this swarm")

    async def call_unary_handler(self: Any, peer_id: Any, proto: str, data: bytes) -> bytes:
        check(peer_id)
        return await call_unary(self, peer_id, proto, data)

    async def stream_open(self: Any, peer_id: Any, protocols: Any) -> Any:
        check(peer_id)
        return await open_stream(self, peer_id, protocols)

    async def connect_to(self: Any, peer_id: Any, maddrs: Any) -> None:
        check(peer_id)
        await connect(self, peer_id, maddrs)

    client.add_unary_handler, client.stream_handler = add_unary_handler, stream_handler
    client.call_unary_handler, client.stream_open, client.connect = (
        call_unary_handler,
        stream_open,
        connect_to,
    )


async def disconnect_strangers(node: Any) -> None:
    """Close connections of unlisted peers (libp2p accepts any connection). Runs in the DHT's process."""
    if (allowlist := _installed) is None:
        return
    control = node.p2p._client.control
    for info in await control.list_peers():
        if not allowlist.allows(info.peer_id):
            allowlist.refuse("connection")
            await _disconnect(control, info.peer_id)


async def _disconnect(control: Any, peer_id: Any) -> None:
    with contextlib.suppress(P2PDaemonError, OSError, asyncio.IncompleteReadError):  # already disconnected
        await control.disconnect(peer_id)


def _kind_of(proto: str) -> str:
    name = proto.rpartition(".rpc_")[2]
    return name if name in _KINDS else "other"
