"""Counters of this network namespace's TCP sockets, read from the kernel (INET_DIAG over netlink).

Two sources, both of the namespace in which `InetDiag` was created:
- a dump of the currently open sockets (SOCK_DIAG_BY_FAMILY for IPv4 and IPv6);
- the destroy groups (SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY), to which the kernel sends a socket's final
  `tcp_info` when it frees the socket. They cover what a socket sent after the last dump, and sockets that existed only
  between two dumps.

Bytes on the wire are `tcpi_bytes_sent` (all payload bytes passed to IP, including retransmissions; `tcpi_bytes_acked`
would miss those and bytes in flight) plus one header per `tcpi_segs_out`: 20 bytes of TCP (12 more with timestamps,
Linux's default: 52 with IPv4) and 20 of IPv4 or 40 of IPv6. Not included: options of SYN and selective ACKs, segments
sent for a socket in TIME_WAIT, UDP; together below 1 % of a training peer's traffic.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP = 270, 1
_TCP_DESTROY_GROUPS = (1, 3)  # IPv4, IPv6
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_INET_DIAG_INFO = 2
# All except SYN_RECV (3), TIME_WAIT (6), LISTEN (10) and NEW_SYN_RECV (12), which have no useful tcp_info
_STATES = 0xFFF & ~(1 << 3 | 1 << 6 | 1 << 10 | 1 << 12)
_TCPI_OPT_TIMESTAMPS = 1
_RECEIVE_BYTES = 1 << 18
_QUEUE_BYTES = 4 << 20  # of unread destroy notices

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_MESSAGE = struct.Struct("=BBBB2s2s16s16sIQIIIII")  # inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")
# tcp_info (linux/tcp.h): options at 5; bytes_received 128, segs_out 136, segs_in 140; bytes_sent 200
_INFO_RECEIVED = struct.Struct("=QII")
_INFO_SENT = struct.Struct("=Q")
_INFO_LENGTH = 208


class InetDiagError(Exception):
    """The kernel provides no socket counters."""


@dataclass(frozen=True, slots=True)
class SocketCounters:
    """Counters of one socket at one moment. `cookie` identifies the socket uniquely within this boot."""

    cookie: int
    state: int
    src: str
    sport: int
    dst: str
    dport: int
    bytes_sent: int
    segs_out: int
    bytes_received: int
    segs_in: int
    header_bytes: int  # IP and TCP header of one segment

    @property
    def ip_bytes_sent(self) -> int:
        """IP bytes this socket put on the wire."""
        return self.bytes_sent + self.header_bytes * self.segs_out


class InetDiag:
    """Reads the counters. Create it inside the namespace and use it from one thread at a time.

    `tail` is "counted" if final counters of closing sockets are received, else "unknown" with the reason in `refusal`.
    `lost_notices` counts overflows of the kernel's queue: bytes that the sockets in the lost notices sent since the last
    dump are missing.
    """

    def __init__(self) -> None:
        """Raises InetDiagError if the kernel has no INET_DIAG."""
        self.tail = "counted"
        self.refusal = ""
        self.lost_notices = 0
        try:
            self._dumps = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
        except OSError as error:
            raise InetDiagError(
                f"no socket counters on this machine: {error}; egress is unknown here"
            ) from error
        self._dumps.settimeout(5.0)
        self._notices: socket.socket | None = None
        self._sequence = 0
        try:
            self._notices = _subscribe()
        except OSError as error:
            self.tail, self.refusal = "unknown", f"the kernel refused notices of closing sockets: {error}"
        try:
            self.read()
        except InetDiagError:
            self.close()
            raise

    def read(self) -> list[SocketCounters]:
        """Return all currently connected TCP sockets. Raises InetDiagError."""
        found: dict[int, SocketCounters] = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            for counters in self._dump(family):
                found[counters.cookie] = counters
        return list(found.values())

    def closed(self) -> list[SocketCounters]:
        """Return the final counters of sockets closed since the last call. Never blocks."""
        found: list[SocketCounters] = []
        while self._notices is not None:
            try:
                data = self._notices.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise InetDiagError(f"cannot read notices of closing sockets: {error}") from error
                self.lost_notices += 1
                continue
            for kind, _, payload in _messages(data):
                if kind == _SOCK_DIAG_BY_FAMILY and (counters := _parse(payload)) is not None:
                    found.append(counters)
        return found

    def close(self) -> None:
        """Close both netlink sockets."""
        self._dumps.close()
        if self._notices is not None:
            self._notices.close()

    def _dump(self, family: int) -> Iterator[SocketCounters]:
        self._sequence += 1
        request = struct.pack(
            "=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, _STATES
        )  # inet_diag_req_v2 with an empty socket id: all
        header = _HEADER.pack(
            _HEADER.size + len(request),
            _SOCK_DIAG_BY_FAMILY,
            _NLM_F_REQUEST | _NLM_F_DUMP,
            self._sequence,
            0,
        )
        try:
            self._dumps.send(header + request)
            while True:
                for kind, sequence, payload in _messages(self._dumps.recv(_RECEIVE_BYTES)):
                    if sequence != self._sequence:
                        continue  # left over from an earlier, aborted dump
                    if kind == _NLMSG_DONE:
                        return
                    if kind == _NLMSG_ERROR:
                        (code,) = struct.unpack_from("=i", payload)
                        if family == socket.AF_INET6 and -code in (errno.ENOENT, errno.EAFNOSUPPORT):
                            return  # a kernel without IPv6
                        raise InetDiagError(
                            f"the kernel refused to list sockets: {errno.errorcode.get(-code, code)}"
                        )
                    if (counters := _parse(payload)) is not None:
                        yield counters
        except OSError as error:
            raise InetDiagError(f"cannot list this namespace's sockets: {error}") from error


def _subscribe() -> socket.socket:
    notices = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    try:
        notices.bind((0, 0))
        for group in _TCP_DESTROY_GROUPS:
            notices.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        notices.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
        notices.setblocking(False)
    except OSError:
        notices.close()
        raise
    return notices


def _messages(data: bytes) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (type, sequence, payload) of each netlink message in a datagram."""
    view, at = memoryview(data), 0
    while at + _HEADER.size <= len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, sequence, view[at + _HEADER.size : at + length]
        at += length + 3 & ~3


def _parse(payload: memoryview) -> SocketCounters | None:
    """Parse one inet_diag_msg with its tcp_info; None if it has none (the socket never carried data)."""
    if len(payload) < _MESSAGE.size:
        return None
    family, state, _, _, sport, dport, src, dst, _, cookie, *_ = _MESSAGE.unpack_from(payload)
    info = _attribute(payload, _INET_DIAG_INFO)
    if info is None or len(info) < _INFO_LENGTH:
        return None
    (bytes_sent,) = _INFO_SENT.unpack_from(info, 200)
    bytes_received, segs_out, segs_in = _INFO_RECEIVED.unpack_from(info, 128)
    source, destination = _address(family, src), _address(family, dst)
    tcp_header = 32 if info[5] & _TCPI_OPT_TIMESTAMPS else 20
    return SocketCounters(
        cookie=cookie,
        state=state,
        src=str(source),
        sport=int.from_bytes(sport, "big"),
        dst=str(destination),
        dport=int.from_bytes(dport, "big"),
        bytes_sent=bytes_sent,
        segs_out=segs_out,
        bytes_received=bytes_received,
        segs_in=segs_in,
        header_bytes=tcp_header + (20 if destination.version == 4 else 40),
    )


def _attribute(payload: memoryview, number: int) -> memoryview | None:
    at = _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(payload):
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind == number:
            return payload[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3
    return None


def _address(family: int, raw: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address; an IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) becomes IPv4."""
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(raw[:4])
    address = ipaddress.IPv6Address(raw)
    return address.ipv4_mapped or address
