"""Who is in the swarm, who of them is dead, and keeping its links from being forgotten."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import hivemind
from hivemind.p2p import PeerID
from hivemind.utils.timed_storage import get_dht_time

from experiments.peer.averaging.rounds import Until
from experiments.peer.config import PeerConfig
from experiments.peer.swarm.internal_addresses import connect_inside, ip_of, to_reconnect
from experiments.peer.swarm.members import IsMember, Member, anybody, parse_members
from experiments.peer.swarm.reachability import away, enough_answer, peer_of, relink
from experiments.wire.dht_records import MEMBERS_FIELD

_log = logging.getLogger(__name__)
_RECORD_LIFE_S = 30.0
_LOOK_S, _CONNECT_S = 3.0, 2.0  # how often connections are looked at, and how long making one again may take
_GOODBYE_S = 1.0
_ROUNDS_OUTSIDE = 3  # after so many a neighbour stays at its public address


def alive_slots(members: Sequence[Member], own_slot: str) -> tuple[str, ...]:
    """The slots that share the data now, in one order for all peers; this peer's is always among them."""
    taking_part = {member.slot for member in members if member.phase in ("ready", "training")}
    return tuple(sorted(taking_part | {own_slot}))


class Membership(threading.Thread):
    """Announces this peer, knows the others, who of them is dead, and re-establishes links that the DHT forgot.

    Hivemind's routing table drops a node that missed one request, and never asks it again; with
    two peers that is a swarm split for good. So this thread pings every known peer that is not in
    the routing table: the ping puts each back into the other's. Announcements are signed with the VM's record key, which the
    DHT's nodes and each reader check: nobody speaks for another.

    A killed peer stays announced for half a minute, and its connections end at once. So between two periods this
    thread asks the own p2pd, which costs no traffic, who is connected; who is not, and cannot be, is dead. Where a whole
    machine is gone, nothing ends its connections: after an attempt to average that failed all are pinged, and
    who does not answer is silent: dead or stopped. A round does without it; but what it said of its epoch holds, and nobody
    takes itself for the last one because of it. When enough answer for a group,
    another attempt begins; the rest is found out meanwhile.
    """

    def __init__(
        self,
        dht: hivemind.DHT,
        config: PeerConfig,
        maddr: str,
        on_heal: Callable[[int], None],
        *,
        subkey: bytes,
        is_member: IsMember = anybody,
        period_s: float = 10.0,
        neighbours: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`subkey`: the one that this VM may write (`dht_records.subkey_of`); `neighbours`: internal address by libp2p id, of
        the peers of this VM's network (`inside.read_neighbours`)."""
        super().__init__(name="membership", daemon=True)
        self._dht: Any = dht  # its methods' types cannot say that return_future=True returns a future
        self._config, self._maddr, self._on_heal = config, maddr, on_heal
        self._period_s = period_s
        self._key, self._subkey, self._is_member = f"{config.run_id}_{MEMBERS_FIELD}", subkey, is_member
        self._phase, self._epoch = "ready", 0
        self._members: tuple[Member, ...] = ()
        self._gone: frozenset[bytes] = frozenset()
        # peer -> until when its announcement lived when it did not answer
        self._silent: dict[bytes, float] = {}
        self._pinging: threading.Thread | None = None
        self._known: dict[str, str] = {peer_of(m): m for m in config.initial_peers}
        self._linked: set[str] = set()
        self._neighbours = neighbours
        self._inside: dict[str, str] = {}  # peer -> the internal address that it is connected at
        self._rounds_outside: dict[str, int] = {}  # peer -> how often it could not be
        self._next_try: dict[str, tuple[float, float]] = {}  # peer -> (not before, wait after a failure)
        self._wake, self._ended = threading.Event(), threading.Event()
        self.heals = 0

    @property
    def members(self) -> tuple[Member, ...]:
        """Who announced itself lately, this peer included once its own record came back."""
        return self._members

    @property
    def gone(self) -> frozenset[bytes]:
        """The libp2p ids of peers that are announced and dead, as of the last look."""
        return self._gone

    def is_member(self, vm: str, record_key: str, peer_id: str) -> bool:
        """As the orders say; `vm` "": whichever."""
        return self._is_member(vm, record_key, peer_id)

    @property
    def inside(self) -> Mapping[str, str]:
        """The internal addresses of the peers that this one has connected again there, by libp2p id."""
        return dict(self._inside)

    @property
    def outside(self) -> tuple[str, ...]:
        """The peers of this network that are connected at their public addresses after all."""
        return tuple(sorted(p for p, n in self._rounds_outside.items() if n >= _ROUNDS_OUTSIDE))

    def wait_until_inside(self, limit_s: float, stop: threading.Event) -> None:
        """Block until each neighbour is connected inside, or is given up, at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not stop.is_set() and time.monotonic() < deadline:
            if all(self._inside.get(p) == ip_of(pair[0]) for p, pair in self._to_reconnect().items()):
                return
            stop.wait(0.1)

    def announce(self, phase: str, epoch: int) -> None:
        """Say from now on that this peer is in `phase` at `epoch`; a change is published at once."""
        changed = (phase, epoch) != (self._phase, self._epoch)
        self._phase, self._epoch = phase, epoch
        if changed:
            self._wake.set()

    def others_training_at(self, epoch: int, seen: int) -> int:
        """How many other peers are training within one epoch of `epoch`, by their announcements; the silent too.

        When more than the `seen` ones are to be expected, the DHT is asked again: they may have left or died meanwhile,
        and in the first epoch those last known to be ready train by now.
        """
        if self._count_others(epoch, _expected_at(epoch)) > seen:
            self._warned(self._look)  # first: the DHT would wait for those that it finds
            self._warned(partial(self._read, self._config.dht_timeout_s))
        return self._count_others(epoch, ("training",))

    def others_left(self, epoch: int, until: Until = "enough answered") -> int:
        """How many others another attempt at the round of `epoch` may find, after one that failed; the silent too.

        Returns at once ("now"; the rest is found out meanwhile), or as soon as more than half of all answer, this peer included: so
        many a group needs (`expected_peers`). When they do not, and where all is to be "known", once it is known who is dead
        and who is silent, and the DHT was asked again.
        """
        awaited = self._others_at(epoch, _expected_at(epoch), self._gone)
        if not awaited:
            return 0
        peers = [peer_of(member.maddr) for member in awaited]
        began = self._pinging is None or not self._pinging.is_alive()
        if began:
            asked = peers if until == "now" else []
            self._pinging = threading.Thread(target=self._find_out, args=(asked,), name="ping", daemon=True)
            self._pinging.start()
        if until == "now" or (until == "enough answered" and self._enough_answer(peers)):
            return len(awaited)
        if self._pinging is not None:
            self._pinging.join()
        if not began:  # it had looked before this attempt failed
            self._find_out([])
        return self._count_others(epoch, ("training",))

    def _find_out(self, peers: list[str]) -> None:
        """Who is dead, who is silent, and then, without waiting for those, what the others announce; `peers`: are asked first."""
        if peers:
            self._enough_answer(peers)
        self._warned(partial(self._look, ping=True))
        self._warned(partial(self._read, self._config.dht_timeout_s))

    def _enough_answer(self, peers: list[str]) -> bool:
        # as long as any call: the answer may stand behind what a failed round left
        answer_s = self._config.dht_timeout_s
        ask = partial(enough_answer, peers=peers, enough=(1 + len(peers)) // 2, answer_s=answer_s)
        try:
            return bool(self._dht.run_coroutine(ask, return_future=True).result(answer_s + _CONNECT_S))
        except Exception as error:  # noqa: BLE001 - a slow DHT: what the ping finds out counts
            _log.warning("membership: %r", error)
            return False

    def _warned(self, ask: Callable[[], None]) -> None:
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - a slow DHT: what was known before holds
            _log.warning("membership: %r", error)

    def others_training(self, epoch: int) -> int:
        """How many other peers are to be expected in the round of `epoch`, as far as is known; returns at once.

        In the first, all that are ready: they begin together, and the news of it travels a while. The silent are not,
        until they answer a ping or announce themselves again.
        """
        silent = frozenset(p for p, member in self._others() if member.until_s <= self._silent.get(p, -1.0))
        return self._count_others(epoch, _expected_at(epoch), silent)

    def others_coming(self) -> int:
        """How many other peers are about to take the swarm's state over, as far as is known; returns at once."""
        return sum(member.phase == "ready" and peer not in self._gone for peer, member in self._others())

    def _count_others(
        self, epoch: int, phases: tuple[str, ...], silent: frozenset[bytes] = frozenset()
    ) -> int:
        return len(self._others_at(epoch, phases, self._gone | silent))

    def _others_at(self, epoch: int, phases: tuple[str, ...], absent: frozenset[bytes]) -> list[Member]:
        return [
            member
            for peer, member in self._others()
            if member.phase in phases and abs(member.epoch - epoch) <= 1 and peer not in absent
        ]

    def _others(self) -> list[tuple[bytes, Member]]:
        """The other members, each with its libp2p id."""
        return [
            (PeerID.from_base58(peer_of(member.maddr)).to_bytes(), member)
            for member in self._members
            if member.vm != self._config.vm
        ]

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
        """Until `stop`: announce, read, heal, look. Faster while the peers gather."""
        next_round, period_s = 0.0, 0.5
        while not self._ended.is_set():
            try:
                if self._wake.is_set() or time.monotonic() >= next_round:
                    self._wake.clear()
                    period_s = 0.5 if self._phase == "ready" else self._period_s
                    next_round = time.monotonic() + period_s
                    self._round()
                self._look()
            except Exception as error:  # noqa: BLE001 - the DHT process may be shutting down; the next round tries
                _log.warning("membership: %r", error)
            self._wake.wait(min(_LOOK_S, period_s))

    def _look(self, ping: bool = False) -> None:
        """Who of the others is dead: a peer whose connection stands is not, whatever it does. With `ping`, who is silent."""
        maddrs = {peer_of(member.maddr): member.maddr for _, member in self._others()}
        until_s = {peer: member.until_s for peer, member in self._others()}
        answer_s = self._config.dht_timeout_s if ping else None  # as `_enough_answer`
        look = partial(away, maddrs=maddrs, connect_s=_CONNECT_S, answer_s=answer_s)
        timeout_s = 2.0 * self._config.dht_timeout_s + _CONNECT_S
        dead, silent = self._dht.run_coroutine(look, return_future=True).result(timeout_s)
        gone = _raw(dead)
        if gone - self._gone:
            _log.warning("dead: %s", ", ".join(dead))
        self._gone = gone
        if ping:
            self._silent = {peer: until_s.get(peer, 0.0) for peer in _raw(silent)}
            if silent:
                _log.warning("silent: %s", ", ".join(silent))

    def stop(self) -> None:
        """Take this peer's announcement back, wait a moment until the DHT has it, and end the thread."""
        self._ended.set()
        self._wake.set()
        now = get_dht_time()
        try:
            self._dht.store(
                self._key,
                subkey=self._subkey,
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
                self._key, subkey=self._subkey, value=own, expiration_time=expiration, return_future=True
            )
            future.result(timeout)
        self._read(timeout)
        for member in self._members:
            if member.vm != self._config.vm:
                self._known[peer_of(member.maddr)] = member.maddr
        self._heal(timeout)
        if self._phase == "ready":  # from then on a connection that ends would take a round with it
            self._go_inside(timeout)

    def _to_reconnect(self) -> dict[str, tuple[str, str]]:
        """The pairs that this peer looks after and has not given up."""
        maddrs = {peer_of(member.maddr): member.maddr for _, member in self._others()}
        training = frozenset(peer_of(member.maddr) for _, member in self._others() if member.phase != "ready")
        pairs = to_reconnect(peer_of(self._maddr), self._neighbours(), maddrs, training)
        return {peer: pair for peer, pair in pairs.items() if peer not in self.outside}

    def _go_inside(self, timeout: float) -> None:
        """Look at all pairs in each round: the other end may have connected at the public address meanwhile."""
        pairs = self._to_reconnect()
        if not pairs:
            return
        connect = partial(connect_inside, pairs=pairs)
        for peer, inside in self._dht.run_coroutine(connect, return_future=True).result(4 * timeout).items():
            if inside:
                self._inside[peer] = ip_of(pairs[peer][0])
            else:
                self._inside.pop(peer, None)
                self._rounds_outside[peer] = self._rounds_outside.get(peer, 0) + 1

    def _read(self, timeout: float) -> None:
        found = self._dht.get(self._key, latest=True, return_future=True).result(timeout)
        value = found.value if found is not None else None
        self._members = tuple(parse_members(value, get_dht_time(), self._is_member))

    def _heal(self, timeout: float) -> None:
        now = time.monotonic()
        due = {peer: m for peer, m in self._known.items() if self._next_try.get(peer, (0.0, 0.0))[0] <= now}
        if not due:
            return
        wait_s = self._config.dht_timeout_s
        future = self._dht.run_coroutine(partial(relink, maddrs=due, timeout_s=wait_s), return_future=True)
        states = future.result(timeout + 2.0 * wait_s)
        # While this peer and its neighbours connect again at internal addresses, nothing was forgotten.
        reconnecting = self._neighbours() if self._phase == "ready" else {}
        healed = 0
        for peer, state in states.items():
            if state == "unreachable":
                wait = min(60.0, 2.0 * self._next_try.get(peer, (0.0, self._period_s / 2))[1])
                self._next_try[peer] = (now + wait, wait)
                continue
            self._next_try.pop(peer, None)
            healed += state == "relinked" and peer in self._linked and peer not in reconnecting
            self._linked.add(peer)
        if healed:
            self.heals += healed
            _log.warning("the DHT had forgotten %d peer(s): linked again", healed)
            self._on_heal(self.heals)


def _expected_at(epoch: int) -> tuple[str, ...]:
    """The phases of those who will come to the round."""
    return ("training",) if epoch else ("training", "ready")


def _raw(peers: Sequence[str]) -> frozenset[bytes]:
    return frozenset(PeerID.from_base58(peer).to_bytes() for peer in peers)
