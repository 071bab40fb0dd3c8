"""Joining the swarm: the DHT node, who is in it, and keeping its links from being forgotten."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hivemind
from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.config import PeerConfig, PeerConfigError

__all__ = [
    "Member",
    "Membership",
    "SwarmError",
    "alive_slots",
    "announced_address",
    "first_peers",
    "own_address",
    "parse_members",
    "start_dht",
]

_log = logging.getLogger(__name__)
_RECORD_LIFE_S = 30.0
_GOODBYE_S = 1.0
_ATTEMPTS, _CLOSED_ATTEMPTS = 3, 10  # to join; seconds apart


class SwarmError(Exception):
    """This peer could not join the swarm."""


@dataclass(frozen=True)
class Member:
    """A peer as it announces itself in the DHT."""

    vm: str
    slot: str
    phase: str  # "ready", "training", "serving"
    epoch: int
    maddr: str


def own_address() -> str:
    """The address of this VM's default route; no packet is sent. Raises SwarmError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: only the route is looked up
        except OSError as error:
            raise SwarmError(f"listen_address is empty and there is no default route: {error}") from error
        return str(probe.getsockname()[0])


def announced_address(wished: str, environ: Mapping[str, str]) -> str:
    """The address of `PeerConfig.announce_address`; "" for none. Raises PeerConfigError."""
    name = wished.removeprefix("env:")
    address = environ.get(name, "") if name != wished else wished
    if not wished:
        return ""
    try:
        return str(ipaddress.IPv4Address(address))
    except ValueError as error:
        raise PeerConfigError(f"announce_address: {wished!r} is no IPv4 address ({address!r})") from error


def first_peers(wished: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The multiaddrs of `PeerConfig.initial_peers`; none for the first peer. Raises PeerConfigError."""
    if len(wished) != 1 or not wished[0].startswith("env:"):
        return tuple(wished)
    name = wished[0].removeprefix("env:")
    told = environ.get(name, "").split()
    if not told:
        raise PeerConfigError(f"initial_peers: {name} is not set (the peers to join, or 'alone')")
    return () if told == ["alone"] else tuple(told)


def start_dht(config: PeerConfig, identity: Path) -> tuple[hivemind.DHT, str]:
    """Start this VM's DHT node; returns it and its multiaddr. Raises SwarmError after some attempts.

    p2pd's start-up is retried: on a busy host it can miss even a long time-out, and a peer asked
    to join may still be starting, or in a closed swarm not have heard of this one.
    """
    attempts = _CLOSED_ATTEMPTS if config.orders_public_key else _ATTEMPTS
    for maddr in config.initial_peers:
        if "/p2p/" not in maddr:
            raise PeerConfigError(f"initial_peers: {maddr!r} has no /p2p/ part")
    address = config.listen_address or own_address()
    announced = announced_address(config.announce_address, os.environ) or address
    last: Exception | None = None
    for attempt in range(1, attempts + 1):
        try:
            dht = hivemind.DHT(
                host_maddrs=[f"/ip4/{address}/tcp/{config.listen_port}"],
                announce_maddrs=[f"/ip4/{announced}/tcp/{config.listen_port}"]
                if announced != address
                else None,
                initial_peers=list(config.initial_peers),
                identity_path=str(identity),
                check_if_identity_free=False,  # it would start a second p2pd, with NAT and relays on
                auto_nat=False,
                nat_port_map=False,
                use_relay=False,
                startup_timeout=60.0 * min(attempt, 3),
                wait_timeout=config.dht_timeout_s,
                bootstrap_timeout=max(10.0, config.dht_timeout_s),
                start=True,
                shutdown_timeout=2,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged, retried and raised at last
            last = error
            _log.warning("DHT start-up, attempt %d of %d: %r", attempt, attempts, error)
            time.sleep(min(2.0 * attempt, 5.0))
            continue
        return dht, f"/ip4/{announced}/tcp/{config.listen_port}/p2p/{dht.peer_id}"
    raise SwarmError(
        f"could not start the DHT node on {address}:{config.listen_port} "
        f"(first peers: {', '.join(config.initial_peers) or 'none'}): {last!r}"
    )


def parse_members(value: Any) -> list[Member]:
    """The members in a DHT dictionary record; what does not look like one is left out."""
    members = []
    for entry in value.values() if isinstance(value, dict) else ():
        raw = getattr(entry, "value", None)
        if not isinstance(raw, list | tuple) or len(raw) != 5:
            continue
        vm, slot, phase, epoch, maddr = raw
        if all(isinstance(text, str) for text in (vm, slot, phase, maddr)) and isinstance(epoch, int):
            members.append(Member(vm, slot, phase, epoch, maddr))
    return sorted(members, key=lambda member: member.vm)


def alive_slots(members: Sequence[Member], own_slot: str) -> tuple[str, ...]:
    """The slots that share the data now, in one order for all peers; this peer's is always among them."""
    taking_part = {member.slot for member in members if member.phase in ("ready", "training")}
    return tuple(sorted(taking_part | {own_slot}))


class Membership(threading.Thread):
    """Announces this peer, knows the others, and re-establishes links that the DHT forgot.

    Hivemind's routing table drops a node that missed one request, and never asks it again; with
    two peers that is a swarm split for good. So this thread pings every known peer that is not in
    the routing table: the ping puts each back into the other's. Announcements are plain and small
    on purpose: they cross the emulated links every period.
    """

    def __init__(
        self,
        dht: hivemind.DHT,
        config: PeerConfig,
        maddr: str,
        on_heal: Callable[[int], None],
        period_s: float = 10.0,
    ) -> None:
        super().__init__(name="membership", daemon=True)
        self._dht: Any = dht  # its methods' types cannot say that return_future=True returns a future
        self._config, self._maddr, self._on_heal = config, maddr, on_heal
        self._period_s = period_s
        self._key = f"{config.run_id}_orch_members"
        self._phase, self._epoch = "ready", 0
        self._members: tuple[Member, ...] = ()
        self._known: dict[str, str] = {_peer_of(m): m for m in config.initial_peers}
        self._linked: set[str] = set()
        self._next_try: dict[str, tuple[float, float]] = {}  # peer -> (not before, wait after a failure)
        self._wake, self._ended = threading.Event(), threading.Event()
        self.heals = 0

    @property
    def members(self) -> tuple[Member, ...]:
        """Who announced itself lately, this peer included once its own record came back."""
        return self._members

    def announce(self, phase: str, epoch: int) -> None:
        """Say from now on that this peer is in `phase` at `epoch`; a change is published at once."""
        changed = (phase, epoch) != (self._phase, self._epoch)
        self._phase, self._epoch = phase, epoch
        if changed:
            self._wake.set()

    def others_training_at(self, epoch: int, seen: int) -> int:
        """How many other peers are training within one epoch of `epoch`, by their announcements.

        When that is more than the `seen` ones, the DHT is asked again: they may have left meanwhile.
        """
        if self._count_others(epoch) > seen:
            try:
                self._read(self._config.dht_timeout_s)
            except Exception as error:  # noqa: BLE001 - a slow DHT: what was known before holds
                _log.warning("membership: %r", error)
        return self._count_others(epoch)

    def _count_others(self, epoch: int) -> int:
        return sum(
            member.vm != self._config.vm and member.phase == "training" and abs(member.epoch - epoch) <= 1
            for member in self._members
        )

    def wait_for_start(self, expected: int, timeout_s: float, stop: threading.Event) -> str:
        """Block until training may start: "ready" (all are), "joined" (it began), "timeout" or "stopped"."""
        deadline = time.monotonic() + timeout_s
        while not stop.is_set():
            members = self._members
            if any(m.phase in ("training", "serving") and m.vm != self._config.vm for m in members):
                return "joined" if any(m.epoch > 0 for m in members) else "ready"
            if expected <= 1 or len({member.slot for member in members}) >= expected:
                return "ready"
            if time.monotonic() >= deadline:
                return "timeout"
            stop.wait(0.1)
        return "stopped"

    def run(self) -> None:
        """Until `stop`: announce, read, heal. Faster while the peers gather."""
        while not self._ended.is_set():
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - the DHT process may be shutting down; the next round tries
                _log.warning("membership: %r", error)
            self._wake.wait(0.5 if self._phase == "ready" else self._period_s)
            self._wake.clear()

    def stop(self) -> None:
        """Take this peer's announcement back, wait a moment until the DHT has it, and end the thread."""
        self._ended.set()
        self._wake.set()
        now = get_dht_time()
        try:
            self._dht.store(
                self._key,
                subkey=self._config.vm,
                value=None,
                expiration_time=now + _RECORD_LIFE_S,
                return_future=True,
            ).result(_GOODBYE_S)
        except Exception as error:  # noqa: BLE001 - on the way out: nobody may be listening any more
            _log.warning("membership: the announcement was not taken back: %r", error)

    def _round(self) -> None:
        timeout = 2.0 * self._config.dht_timeout_s
        own = (self._config.vm, self._config.slot, self._phase, self._epoch, self._maddr)
        expiration = get_dht_time() + _RECORD_LIFE_S
        if not self._ended.is_set():
            future = self._dht.store(
                self._key, subkey=self._config.vm, value=own, expiration_time=expiration, return_future=True
            )
            future.result(timeout)
        self._read(timeout)
        for member in self._members:
            if member.vm != self._config.vm and "/p2p/" in member.maddr:
                self._known[_peer_of(member.maddr)] = member.maddr
        self._heal(timeout)

    def _read(self, timeout: float) -> None:
        found = self._dht.get(self._key, latest=True, return_future=True).result(timeout)
        self._members = tuple(parse_members(found.value if found is not None else None))

    def _heal(self, timeout: float) -> None:
        now = time.monotonic()
        due = {peer: m for peer, m in self._known.items() if self._next_try.get(peer, (0.0, 0.0))[0] <= now}
        if not due:
            return
        wait_s = self._config.dht_timeout_s
        future = self._dht.run_coroutine(partial(_relink, maddrs=due, timeout_s=wait_s), return_future=True)
        states = future.result(timeout + 2.0 * wait_s)
        healed = 0
        for peer, state in states.items():
            if state == "unreachable":
                wait = min(60.0, 2.0 * self._next_try.get(peer, (0.0, self._period_s / 2))[1])
                self._next_try[peer] = (now + wait, wait)
                continue
            self._next_try.pop(peer, None)
            healed += state == "relinked" and peer in self._linked
            self._linked.add(peer)
        if healed:
            self.heals += healed
            _log.warning("the DHT had forgotten %d peer(s): linked again", healed)
            self._on_heal(self.heals)


def _peer_of(maddr: str) -> str:
    return maddr.rsplit("/p2p/", 1)[1]


async def _relink(_dht: Any, node: Any, maddrs: dict[str, str], timeout_s: float) -> dict[str, str]:
    """In the DHT's process: ping the peers missing in the routing table. Returns each one's state."""

    async def one(peer: str, maddr: str) -> str:
        peer_id = PeerID.from_base58(peer)
        if peer_id in node.protocol.routing_table:
            return "linked"
        address = Multiaddr(maddr.rsplit("/p2p/", 1)[0])
        try:
            await asyncio.wait_for(node.p2p._client.connect(peer_id, [address]), timeout_s)
        except Exception as error:  # noqa: BLE001 - dead peers are expected here; the state tells
            _log.info("membership: cannot reach %s: %r", maddr, error)
            return "unreachable"
        if await node.protocol.call_ping(peer_id) is None:
            return "unreachable"
        node.blacklist.register_success(peer_id)
        return "relinked"

    states = await asyncio.gather(*(one(peer, maddr) for peer, maddr in maddrs.items()))
    return dict(zip(maddrs, states, strict=True))
