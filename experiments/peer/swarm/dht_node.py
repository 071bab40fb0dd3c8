"""Joining the swarm: this peer's addresses, its first peers, its DHT node."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import hivemind

from experiments.peer.config import PeerConfig, PeerConfigError

_log = logging.getLogger(__name__)
_ATTEMPTS, _CLOSED_ATTEMPTS = 3, 10  # to join; seconds apart


class SwarmError(Exception):
    """This peer could not join the swarm."""


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
