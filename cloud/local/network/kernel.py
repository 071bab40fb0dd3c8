"""The few Linux system calls that the emulated cloud needs, through libc: no iproute2, no compiled extension."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK, _PR_SET_CHILD_SUBREAPER = 1, 29, 36
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
_SIOCSIFMTU, _SIOCGIFHWADDR, _SIOCETHTOOL, _SIOCADDRT = 0x8922, 0x8927, 0x8946, 0x890B
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# ETHTOOL_S{RXCSUM,TXCSUM,SG,TSO,GSO,GRO}: otherwise a packet would cross a veth pair without its checksum,
# which is left to a network card that does not exist, or as one 64 KiB frame
_OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave some of the namespaces that this process shares with its parent. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def enter_network(ns_fd: int) -> None:
    """Move this process into a network namespace, which its children inherit. Raises OSError."""
    _check(_libc.setns(ns_fd, CLONE_NEWNET), "setns")


def map_own_user(uid: int, gid: int) -> None:
    """Map the user and group to themselves in a new user namespace, so that files have the same owner inside."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def make_mounts_private() -> None:
    """Hide all later mounts of a new mount namespace from the outside."""
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")


def mount_tmpfs(folder: str, mode: str = "0700") -> None:
    """Mount an empty tmpfs over `folder`. Raises OSError."""
    flags = _MS_NOSUID | _MS_NODEV
    _check(
        _libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, f"mode={mode}".encode()), f"mount {folder}"
    )


def end_with_parent(signal_number: int) -> None:
    """Have the kernel send this process `signal_number` when its parent dies."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def name_process(title: str) -> None:
    """Replace this process's command line, as `ps` shows it, by `title`, cut to the length of the present one."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end; 0 where they may not be read
    if 0 < begin < end:
        text = title.encode()[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def precise_timers() -> None:
    """Let this process wake up on time instead of up to 50 microseconds later."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0), "prctl(PR_SET_TIMERSLACK)")


def _ifreq(name: str, rest: bytes = b"") -> bytes:
    return struct.pack("16s24s", name.encode(), rest)


def _sockaddr(ip: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(ip))


def open_tun(name: str) -> int:
    """Create a TUN interface in the current network namespace; its descriptor carries plain IP packets."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(tun)
        raise
    return tun


def raise_interface(name: str, *, ip: str = "", mtu: int = 0, queue: int = 0, arp: bool = True) -> None:
    """Configure an interface of the current network namespace and bring it up. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        if mtu:
            fcntl.ioctl(control, _SIOCSIFMTU, _ifreq(name, struct.pack("i", mtu)))
        if queue:  # by netlink: the ioctl requires a privilege over the whole machine
            body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0)
            _netlink(16, body + _attribute(13, struct.pack("=I", queue)), create=False)
        if ip:
            fcntl.ioctl(control, _SIOCSIFADDR, _ifreq(name, _sockaddr(ip)))
            fcntl.ioctl(control, _SIOCSIFNETMASK, _ifreq(name, _sockaddr("255.255.255.0")))
        flags = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, _ifreq(name)), 16)[0]
        flags |= _IFF_UP | (0 if arp else _IFF_NOARP)
        fcntl.ioctl(control, _SIOCSIFFLAGS, _ifreq(name, struct.pack("H", flags)))


def default_route(name: str) -> None:
    """Route everything through one interface, so that programs that look up their default route's address find it."""
    device = ctypes.create_string_buffer(name.encode())
    any_address = _sockaddr("0.0.0.0")
    entry = struct.pack(
        "@L16s16s16sHhLPhPLLH",
        *(0, any_address, bytes(16), any_address, 1, 0, 0, 0, 0, ctypes.addressof(device), 0, 0, 0),
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCADDRT, entry)


def hardware_address(name: str) -> bytes:
    """MAC address of an interface of the current network namespace (6 bytes)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        return fcntl.ioctl(control, _SIOCGIFHWADDR, _ifreq(name))[18:24]


def offloads_off(name: str) -> None:
    """Make the kernel complete each packet (checksum, size) before the interface sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(control, _SIOCETHTOOL, _ifreq(name, struct.pack("P", ctypes.addressof(value))))


def _attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def make_veth(name: str, peer_name: str, peer_ns_fd: int) -> None:
    """Create a pair of connected interfaces: `name` here, `peer_name` in another network namespace. Raises OSError."""
    interface = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    ifname, linkinfo, ns_fd = 3, 18, 28  # IFLA_*
    peer = interface + _attribute(ifname, peer_name.encode() + b"\0")
    peer += _attribute(ns_fd, struct.pack("=I", peer_ns_fd))
    # IFLA_INFO_KIND is 1, IFLA_INFO_DATA 2, VETH_INFO_PEER 1
    info = _attribute(1, b"veth") + _attribute(2, _attribute(1, peer))
    _netlink(16, interface + _attribute(ifname, name.encode() + b"\0") + _attribute(linkinfo, info))


def _netlink(kind: int, body: bytes, *, create: bool = True) -> None:
    flags = 0x1 | 0x4 | (0x400 | 0x200 if create else 0)  # NLM_F_REQUEST, _ACK, _CREATE, _EXCL
    head = struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as control:
        control.send(head + body)
        answer = control.recv(4096)
    number = -struct.unpack_from("=i", answer, 16)[0]
    if number:
        raise OSError(number, f"netlink: {os.strerror(number)}")


def send_descriptors(wire: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send one message with open descriptors over a UNIX socket."""
    socket.send_fds(wire, [message], list(fds))


def receive_descriptors(wire: socket.socket, size: int = 65536) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors."""
    message, fds, _, _ = socket.recv_fds(wire, size, 4)
    return message, list(fds)


def descriptor_from_child(make: Callable[[], int]) -> tuple[str, int | None]:
    """Call `make` in a forked child and return the descriptor that it returns, or the message of its OSError.

    Needed for descriptors of another namespace: a process of an ordinary user that entered it could not come back.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            try:
                send_descriptors(theirs, b"ok", [make()])
            except OSError as error:
                theirs.send(str(error).encode())
            os._exit(0)
        theirs.close()
        message, fds = receive_descriptors(ours)
        os.waitpid(pid, 0)
    return message.decode(), fds[0] if fds else None
