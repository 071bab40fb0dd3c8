"""Swarm membership: announces this peer, tracks the others and which are dead, and restores lost DHT links."""

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
from experiments.peer.swarm.reachability import enough_answer, find_dead_and_silent, peer_of, relink
from experiments.wire.dht_records import MEMBER_PHASES, MEMBERS_FIELD

_log = logging.getLogger(__name__)
_RECORD_LIFE_S = 30.0
_LOOK_S, _CONNECT_S = 3.0, 2.0  # period of connection checks; timeout of a reconnect
_WITHDRAW_S = 1.0
_MOST_FAILED_ROUNDS = 3  # after that a neighbour stays connected at its public address


def alive_slots(members: Sequence[Member], own_slot: str) -> tuple[str, ...]:
    """Slots that share the data now, sorted, so the order is the same on all peers. Includes this peer's slot."""
    taking_part = {member.slot for member in members if member.phase in ("ready", "training")}
    return tuple(sorted(taking_part | {own_slot}))


class Membership(threading.Thread):
    """Announces this peer, tracks the other members and which of them are dead, and restores links the DHT dropped.

    Hivemind's routing table drops a node that missed one request and never contacts it again; with two peers the swarm
    is split permanently. So this thread pings every known peer missing from the routing table, which puts each peer
    back into the other's table. Announcements are signed with the VM's record key. The DHT's nodes and each reader
    verify it, so a peer cannot announce another one.

    A killed peer stays announced for half a minute, but its connections close at once. So between two periods this
    thread asks its own p2pd, without network traffic, which peers are connected; a peer that is neither connected nor
    reachable is dead. If a whole machine disappears, nothing closes its connections: after a failed averaging attempt
    all peers are pinged, and those that do not respond are silent: dead or stopped. Rounds proceed without silent
    peers, but their reported epochs stay valid, so no peer concludes from their silence that it is the last one. Once
    enough peers for a group have responded, the next attempt begins; the rest is determined meanwhile.
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
        weights: str = "",
    ) -> None:
        """`subkey`: the only one this VM may write (`dht_records.subkey_of`). `neighbours`: internal addresses of the
        peers in this VM's network, by libp2p id (`internal_addresses.read_neighbours`). `weights`: digest of the start
        weights to announce; "": none.
        """
        super().__init__(name="membership", daemon=True)
        self._dht: Any = dht  # its methods' types cannot say that return_future=True returns a future
        self._config, self._maddr, self._on_heal = config, maddr, on_heal
        self._period_s = period_s
        self._key, self._subkey, self._is_member = f"{config.run_id}_{MEMBERS_FIELD}", subkey, is_member
        self._phase, self._epoch = "ready", 0
        self._start_epoch = 0  # at which this swarm begins, unless it is already training
        self._weights = (weights,) if weights else ()
        self._members: tuple[Member, ...] = ()
        self._gone: frozenset[bytes] = frozenset()
        # peer -> expiration of its announcement when it did not respond
        self._silent: dict[bytes, float] = {}
        self._pinging: threading.Thread | None = None
        self._known: dict[str, str] = {peer_of(m): m for m in config.initial_peers}
        self._linked: set[str] = set()
        self._neighbours = neighbours
        self._internal: dict[str, str] = {}  # peer -> the internal address at which it is connected
        self._failed_rounds: dict[str, int] = {}  # peer -> failed attempts to connect internally
        self._next_try: dict[str, tuple[float, float]] = {}  # peer -> (time of the next ping, its delay)
        self._wake, self._ended = threading.Event(), threading.Event()
        self.heals = 0

    @property
    def members(self) -> tuple[Member, ...]:
        """Recently announced peers, including this one once its own record has been read back."""
        return self._members

    @property
    def gone(self) -> frozenset[bytes]:
        """Libp2p ids of announced peers that were dead at the last check."""
        return self._gone

    def is_member(self, vm: str, record_key: str, peer_id: str) -> bool:
        """Whether the orders list this peer; `vm` "": under any name."""
        return self._is_member(vm, record_key, peer_id)

    @property
    def internal(self) -> Mapping[str, str]:
        """Internal addresses by libp2p id of the peers this one has reconnected to internally."""
        return dict(self._internal)

    @property
    def public_only(self) -> tuple[str, ...]:
        """Peers of this network that stay connected at their public addresses."""
        return tuple(sorted(p for p, n in self._failed_rounds.items() if n >= _MOST_FAILED_ROUNDS))

    def wait_for_internal_connections(self, limit_s: float, stop: threading.Event) -> None:
        """Block until each neighbour is connected internally or given up, at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not stop.is_set() and time.monotonic() < deadline:
            if all(self._internal.get(p) == ip_of(pair[0]) for p, pair in self._to_reconnect().items()):
                return
            stop.wait(0.1)

    def announce(self, phase: str, epoch: int) -> None:
        """Announce this peer in `phase` at `epoch` from now on. A change is published at once."""
        changed = (phase, epoch) != (self._phase, self._epoch)
        self._phase, self._epoch = phase, epoch
        if changed:
            self._wake.set()

    def starts_at(self, epoch: int) -> None:
        """Announce, while ready, that this peer begins with the weights of `epoch`, which come from a checkpoint.

        Ready peers are expected in the first round, which is that of this epoch. Call it before training.
        """
        self._start_epoch = self._epoch = epoch
        self._wake.set()

    def slots_in(self, *phases: str) -> frozenset[str]:
        """Slots of the other peers announced in one of these phases and not known to be dead."""
        return frozenset(m.slot for peer, m in self._others() if m.phase in phases and peer not in self._gone)

    def others_train(self) -> bool:
        """Read the announcements now: whether another peer trains, or serves the state after training.

        Announcements outlive their peers, so the peers' connections are checked too. Can be called before the thread starts.
        """
        self._log_errors(partial(self._read, 2.0 * self._config.dht_timeout_s))
        return bool(self._living_others("training", "serving"))

    def _living_others(self, *phases: str) -> list[Member]:
        """The other peers in these phases that are not dead, after a check of the connections if there seem to be any."""
        if self.slots_in(*phases):
            self._log_errors(self._check_connections)
        return [m for peer, m in self._others() if m.phase in phases and peer not in self._gone]

    def others_training_at(self, epoch: int, seen: int) -> int:
        """Number of other peers announced as training within one epoch of `epoch`, including silent ones.

        If more than `seen` are expected, the DHT is queried again: some may have left or died meanwhile, and in the first
        epoch those last known as ready are training by now.
        """
        if self._count_others(epoch, self._expected_at(epoch)) > seen:
            # first: DHT calls would wait for the dead peers it finds
            self._log_errors(self._check_connections)
            self._log_errors(partial(self._read, self._config.dht_timeout_s))
        return self._count_others(epoch, ("training",))

    def others_expected(self, epoch: int, until: Until = "enough answered") -> int:
        """Number of other peers that the next attempt at the round of `epoch` may find, including silent ones.

        Call it after a failed attempt. "now" returns at once, and the peers are checked meanwhile. "enough answered" returns
        as soon as more than half of all peers, including this one, have responded: a group needs that many
        (`expected_peers`). Otherwise, and for "known", it returns once the dead and silent peers are known and the DHT
        has been queried again.
        """
        awaited = self._others_at(epoch, self._expected_at(epoch), self._gone)
        if not awaited:
            return 0
        peers = [peer_of(member.maddr) for member in awaited]
        began = self._pinging is None or not self._pinging.is_alive()
        if began:
            asked = peers if until == "now" else []
            self._pinging = threading.Thread(
                target=self._check_others, args=(asked,), name="ping", daemon=True
            )
            self._pinging.start()
        if until == "now" or (until == "enough answered" and self._enough_answer(peers)):
            return len(awaited)
        if self._pinging is not None:
            self._pinging.join()
        if not began:  # that check had begun before this attempt failed
            self._check_others([])
        return self._count_others(epoch, ("training",))

    def _check_others(self, peers: list[str]) -> None:
        """Find dead and silent peers, then read the announcements without waiting for those; pings `peers` first."""
        if peers:
            self._enough_answer(peers)
        self._log_errors(partial(self._check_connections, ping=True))
        self._log_errors(partial(self._read, self._config.dht_timeout_s))

    def _enough_answer(self, peers: list[str]) -> bool:
        # the timeout of any call: responses may be queued behind data of a failed round
        answer_s = self._config.dht_timeout_s
        ask = partial(enough_answer, peers=peers, enough=(1 + len(peers)) // 2, answer_s=answer_s)
        try:
            return bool(self._dht.run_coroutine(ask, return_future=True).result(answer_s + _CONNECT_S))
        except Exception as error:  # noqa: BLE001 - a slow DHT: the result of the ping counts
            _log.warning("membership: %r", error)
            return False

    def _log_errors(self, query: Callable[[], None]) -> None:
        try:
            query()
        except Exception as error:  # noqa: BLE001 - a slow DHT: the previous knowledge stays valid
            _log.warning("membership: %r", error)

    def others_training(self, epoch: int) -> int:
        """Number of other peers expected in the round of `epoch`, as currently known; returns at once.

        In the first round this includes all ready peers: they begin together, and their announcements take a while to
        propagate. Silent peers are excluded until they respond to a ping or announce themselves again.
        """
        silent = frozenset(p for p, member in self._others() if member.until_s <= self._silent.get(p, -1.0))
        return self._count_others(epoch, self._expected_at(epoch), silent)

    def others_joining(self) -> int:
        """Number of other peers about to download the swarm's state, as currently known; returns at once."""
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

    def _expected_at(self, epoch: int) -> tuple[str, ...]:
        """Phases of the peers expected in the round."""
        return ("training", "ready") if epoch == self._start_epoch else ("training",)

    def _own_slot(self) -> frozenset[str]:
        """This peer's slot, once its own announcement has been read back."""
        return frozenset(m.slot for m in self._members if m.vm == self._config.vm)

    def _others(self) -> list[tuple[bytes, Member]]:
        """Other members with their libp2p ids."""
        return [
            (PeerID.from_base58(peer_of(member.maddr)).to_bytes(), member)
            for member in self._members
            if member.vm != self._config.vm
        ]

    def wait_for_start(self, expected: int, timeout_s: float, stop: threading.Event) -> str:
        """Block until training may start. Returns "ready" (all peers are ready), "joined" (the swarm already trains),
        "timeout" or "stopped". Peers that are announced but dead do not count.
        """
        deadline = time.monotonic() + timeout_s
        while not stop.is_set():
            if training := self._living_others("training", "serving"):
                return "joined" if any(m.epoch > self._start_epoch for m in training) else "ready"
            if expected <= 1 or len(self.slots_in(*MEMBER_PHASES) | self._own_slot()) >= expected:
                return "ready"
            if time.monotonic() >= deadline:
                return "timeout"
            stop.wait(0.1)
        return "stopped"

    def run(self) -> None:
        """Announce, read, restore links and check connections until `stop`. Faster while the peers gather."""
        next_round, period_s = 0.0, 0.5
        while not self._ended.is_set():
            try:
                if self._wake.is_set() or time.monotonic() >= next_round:
                    self._wake.clear()
                    period_s = 0.5 if self._phase == "ready" else self._period_s
                    next_round = time.monotonic() + period_s
                    self._round()
                self._check_connections()
            except Exception as error:  # noqa: BLE001 - the DHT process may be shutting down; retried in the next round
                _log.warning("membership: %r", error)
            self._wake.wait(min(_LOOK_S, period_s))

    def _check_connections(self, ping: bool = False) -> None:
        """Find dead peers and, with `ping`, silent ones. A connected peer is not dead, even if it does not respond."""
        maddrs = {peer_of(member.maddr): member.maddr for _, member in self._others()}
        until_s = {peer: member.until_s for peer, member in self._others()}
        answer_s = self._config.dht_timeout_s if ping else None  # as in `_enough_answer`
        find = partial(find_dead_and_silent, maddrs=maddrs, connect_s=_CONNECT_S, answer_s=answer_s)
        timeout_s = 2.0 * self._config.dht_timeout_s + _CONNECT_S
        dead, silent = self._dht.run_coroutine(find, return_future=True).result(timeout_s)
        gone = _raw(dead)
        if gone - self._gone:
            _log.warning("dead peers: %s", ", ".join(dead))
        self._gone = gone
        if ping:
            self._silent = {peer: until_s.get(peer, 0.0) for peer in _raw(silent)}
            if silent:
                _log.warning("silent peers: %s", ", ".join(silent))

    def stop(self) -> None:
        """Withdraw this peer's announcement, wait briefly until the DHT has stored that, and end the thread."""
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
            ).result(_WITHDRAW_S)
        except Exception as error:  # noqa: BLE001 - during shutdown: there may be no peers left
            _log.warning("membership: the announcement was not withdrawn: %r", error)

    def _round(self) -> None:
        timeout = 2.0 * self._config.dht_timeout_s
        own = (self._config.vm, self._config.slot, self._phase, self._epoch, self._maddr, *self._weights)
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
        if self._phase == "ready":  # later, closing a connection would abort a round
            self._connect_internally(timeout)

    def _to_reconnect(self) -> dict[str, tuple[str, str]]:
        """Pairs for which this peer is responsible and that it has not given up."""
        maddrs = {peer_of(member.maddr): member.maddr for _, member in self._others()}
        training = frozenset(peer_of(member.maddr) for _, member in self._others() if member.phase != "ready")
        pairs = to_reconnect(peer_of(self._maddr), self._neighbours(), maddrs, training)
        return {peer: pair for peer, pair in pairs.items() if peer not in self.public_only}

    def _connect_internally(self, timeout: float) -> None:
        """Check all pairs in each round: the other end may have connected at the public address meanwhile."""
        pairs = self._to_reconnect()
        if not pairs:
            return
        connect = partial(connect_inside, pairs=pairs)
        for peer, done in self._dht.run_coroutine(connect, return_future=True).result(4 * timeout).items():
            if done:
                self._internal[peer] = ip_of(pairs[peer][0])
            else:
                self._internal.pop(peer, None)
                self._failed_rounds[peer] = self._failed_rounds.get(peer, 0) + 1

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
        # Links lost while this peer and its neighbours reconnect internally were not dropped by the DHT.
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
            _log.warning("the DHT had dropped %d peer(s): relinked", healed)
            self._on_heal(self.heals)


def _raw(peers: Sequence[str]) -> frozenset[bytes]:
    return frozenset(PeerID.from_base58(peer).to_bytes() for peer in peers)
