"""A node's network: a namespace with one interface, whose other end belongs to the switch.

Namespaces have no names: each lives as long as a process holds its descriptor, so a crash leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cloud.local.network import kernel
from cloud.local.windows import TcpSettings

LinkKind = Literal["tun", "veth"]


class Link(Protocol):
    """The switch's end of a node's interface: plain IPv4 packets in both directions, non-blocking."""

    def fileno(self) -> int: ...

    def recv(self) -> bytes | None:
        """Return the next packet that the node sent, or None if there is none."""
        ...

    def send(self, packet: bytes) -> None:
        """Deliver a packet to the node. Raises OSError if the kernel has no space for it."""
        ...

    def close(self) -> None: ...


class TunLink:
    """A TUN device's descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def recv(self) -> bytes | None:
        try:
            return os.read(self._fd, 9216)
        except BlockingIOError:
            return None

    def send(self, packet: bytes) -> None:
        os.write(self._fd, packet)

    def close(self) -> None:
        os.close(self._fd)


class PacketLink:
    """A raw packet socket on the switch's end of a veth pair.

    Packets are received through a ring in shared memory: an ordinary user cannot enlarge the socket's buffer enough for
    a burst, but may use a ring of any size.
    """

    _BLOCK = 1 << 16

    def __init__(self, packet_socket: socket.socket, mac: bytes, mtu_bytes: int) -> None:
        sol_packet, rx_ring, version = 263, 5, 10
        packet_socket.setsockopt(sol_packet, version, 1)  # TPACKET_V2
        # a frame holds a packet, its Ethernet header and the kernel's metadata
        self._frame, frames = (2048, 4096) if mtu_bytes <= 1500 else (16384, 1024)
        self._size = self._frame * frames
        ring = struct.pack("IIII", self._BLOCK, self._size // self._BLOCK, self._frame, frames)
        packet_socket.setsockopt(sol_packet, rx_ring, ring)
        packet_socket.setblocking(False)
        self._socket = packet_socket
        self._ring = mmap.mmap(packet_socket.fileno(), self._size)
        self._words = memoryview(self._ring).cast("I")
        self._at = 0
        self._head = mac + bytes(6) + b"\x08\x00"

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self) -> bytes | None:
        at = self._at
        if not self._words[at >> 2] & 1:  # TP_STATUS_USER
            return None
        # struct tpacket2_hdr: status, length, captured length, offset of the frame, offset of the IP packet
        _, length, _, _, offset = struct.unpack_from("=IIIHH", self._ring, at)
        packet = self._ring[at + offset : at + offset + length - 14]
        self._words[at >> 2] = 0
        self._at = (at + self._frame) % self._size
        return packet

    def send(self, packet: bytes) -> None:
        self._socket.send(self._head + packet)

    def close(self) -> None:
        self._words.release()
        self._ring.close()
        self._socket.close()


@dataclass
class NodeNet:
    """The host's handles of a node: its namespace, and the link's descriptor until the switch has it."""

    ip: str
    ns_fd: int
    link_fd: int
    kind: LinkKind
    mac: bytes


def tun_usable() -> bool:
    """Whether this process may open the TUN device."""
    return os.access("/dev/net/tun", os.R_OK | os.W_OK)


def open_link(kind: str, fd: int, mac: bytes, mtu_bytes: int) -> Link:
    """Open the link of a descriptor received from the host."""
    return TunLink(fd) if kind == "tun" else PacketLink(socket.socket(fileno=fd), mac, mtu_bytes)


def make_node(number: int, ip: str, kind: LinkKind, tcp: TcpSettings, switch_ns_fd: int | None) -> NodeNet:
    """Create a namespace with one interface and these TCP settings.

    A forked child does this and sends the descriptors back: a process of an ordinary user that entered its own namespace
    could not return to the machine's. `switch_ns_fd` (veth only) is the namespace of the switch's ends. Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            _child(theirs, number, ip, kind, tcp, switch_ns_fd)
        theirs.close()
        message, fds = kernel.receive_descriptors(ours)
        os.waitpid(pid, 0)
    if len(fds) != 2:
        raise OSError(message.decode() or "the child that makes a network namespace died")
    return NodeNet(ip, fds[0], fds[1], kind, message)


def _child(
    wire: socket.socket,
    number: int,
    ip: str,
    kind: LinkKind,
    tcp: TcpSettings,
    switch_ns_fd: int | None,
) -> None:
    try:
        mac, link_fd = bytes(6), -1
        kernel.unshare(kernel.CLONE_NEWNET)
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        if kind == "tun":
            link_fd = kernel.open_tun("wan0")
        else:
            assert switch_ns_fd is not None
            kernel.enter_network(switch_ns_fd)
            kernel.make_veth(f"n{number}", "wan0", own)
            _disable_ipv6()
            kernel.raise_interface(f"n{number}", mtu=tcp.mtu_bytes, arp=False)
            kernel.offloads_off(f"n{number}")
            packet_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            packet_socket.bind((f"n{number}", 0x0800))
            link_fd = packet_socket.fileno()
            kernel.enter_network(own)
            mac = kernel.hardware_address("wan0")
            kernel.offloads_off("wan0")
        _disable_ipv6()
        kernel.raise_interface("lo")
        kernel.raise_interface(
            "wan0", ip=ip, mtu=tcp.mtu_bytes, queue=10000 if kind == "tun" else 0, arp=kind == "tun"
        )
        kernel.default_route("wan0")
        _write(tcp)
        kernel.send_descriptors(wire, mac, [own, link_fd])
    except OSError as error:
        wire.send(str(error).encode())
    finally:
        os._exit(0)


def _disable_ipv6() -> None:
    switch = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    if switch.exists():
        switch.write_text("1")


def _write(tcp: TcpSettings) -> None:
    """Write the settings, including the congestion control: a new namespace inherits the host's, which may not be allowed."""
    sysctl = Path("/proc/sys/net/ipv4")
    (sysctl / "tcp_rmem").write_text(f"4096 {tcp.receive_bytes} {tcp.receive_bytes}")
    (sysctl / "tcp_wmem").write_text(f"4096 {tcp.send_bytes} {tcp.send_bytes}")
    (sysctl / "tcp_window_scaling").write_text(str(int(tcp.window_scaling)))
    (sysctl / "tcp_moderate_rcvbuf").write_text("0")
    (sysctl / "tcp_slow_start_after_idle").write_text("0")
    (sysctl / "tcp_no_metrics_save").write_text("1")
    # packets delayed by the switch are not lost: a timeout (200 ms and up by default) would only send them again
    with contextlib.suppress(FileNotFoundError):  # kernels before 6.11
        (sysctl / "tcp_rto_min_us").write_text("3000000")
    (sysctl / "tcp_congestion_control").write_text(tcp.congestion)
