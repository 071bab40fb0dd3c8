"""Joining the swarm: this peer's addresses, its initial peers, its DHT node."""

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
_ATTEMPTS, _CLOSED_ATTEMPTS = 3, 10  # to join an open or a closed swarm, seconds apart


class SwarmError(Exception):
    """This peer could not join the swarm."""


def own_address() -> str:
    """Return the address of this VM's default route, without sending a packet. Raises SwarmError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: only the route is looked up
        except OSError as error:
            raise SwarmError(f"listen_address is empty and there is no default route: {error}") from error
        return str(probe.getsockname()[0])


def announced_address(configured: str, environ: Mapping[str, str]) -> str:
    """Resolve `PeerConfig.announce_address`; "" for none. Raises PeerConfigError."""
    name = configured.removeprefix("env:")
    address = environ.get(name, "") if name != configured else configured
    if not configured:
        return ""
    try:
        return str(ipaddress.IPv4Address(address))
    except ValueError as error:
        raise PeerConfigError(
            f"announce_address: {configured!r} is not an IPv4 address ({address!r})"
        ) from error


def first_peers(configured: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Resolve `PeerConfig.initial_peers` to multiaddrs; none for the first peer. Raises PeerConfigError."""
    if len(configured) != 1 or not configured[0].startswith("env:"):
        return tuple(configured)
    name = configured[0].removeprefix("env:")
    peers = environ.get(name, "").split()
    if not peers:
        raise PeerConfigError(f"initial_peers: {name} is not set (the peers to join, or 'alone')")
    return () if peers == ["alone"] else tuple(peers)


def start_dht(config: PeerConfig, identity: Path) -> tuple[hivemind.DHT, str]:
    """Start this VM's DHT node. Returns it and its multiaddr. Raises SwarmError after several attempts.

    The start is retried: on a busy host p2pd can miss even a long timeout, and a peer to join may still be starting or,
    in a closed swarm, may not have received orders that list this one.
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
        except Exception as error:  # noqa: BLE001 - any error is logged, retried and finally raised
            last = error
            _log.warning("DHT start-up, attempt %d of %d: %r", attempt, attempts, error)
            time.sleep(min(2.0 * attempt, 5.0))
            continue
        return dht, f"/ip4/{announced}/tcp/{config.listen_port}/p2p/{dht.peer_id}"
    raise SwarmError(
        f"could not start the DHT node on {address}:{config.listen_port} "
        f"(first peers: {', '.join(config.initial_peers) or 'none'}): {last!r}"
    )
