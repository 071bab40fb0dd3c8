"""A model of the peers on a simulated cloud: they boot, join, train, average, leave, and stop without a lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from cloud.provider import is_monitor
from cloud.sim import SimVm, SimWorld
from experiments.wire.lease import Lease

_SOON_S = 1e-3
_LEAVE_S = (2.0, 20.0)  # a peer that got a notice has left the swarm after this


@dataclass(frozen=True, slots=True)
class PeerModel:
    """What a peer is like."""

    sps: float = 80.0  # samples per second of each
    target_batch_size: int = 32768
    averaging_s: float = 8.0
    dht_s: tuple[float, float] = (5.0, 20.0)  # program started to its address known
    join_s: tuple[float, float] = (15.0, 60.0)  # address known to training: the state's download
    max_epochs: int = 0  # peers are done after this; 0: never
    lease_s: float = 600.0
    skew_s: float = 0.0  # VMs' clocks are wrong by up to this
    by_wall_clock: bool = False  # a lease that runs by the VM's time of day, to see the checks fail
    waits: bool = False  # on its VM it waits to be told whom to join, as on rented ones


@dataclass(slots=True, eq=False)
class _Peer:
    vm: SimVm
    lease: Lease
    first: int  # the number of the orders that it began with
    heard: int  # of those that it knows
    phase: str = "starting"
    clock_ahead_s: float = 0.0
    looks: int = 0  # at its lease, to know the last one that is due
    cut_s: float | None = None  # nobody sees it since then
    error: str = ""

    @property
    def works(self) -> bool:
        return self.phase == "training" and self.cut_s is None


class Peers:
    """All peers of a run. Driven by the world's changes; every change costs O(1)."""

    def __init__(self, world: SimWorld, model: PeerModel, seed: int | str) -> None:
        self._world, self._model = world, model
        self._random = Random(f"peers {seed}")
        self._peers: dict[str, _Peer] = {}  # by VM, those alive
        self._working = 0
        self._at_s = self._renewed_s = world.now_s
        self._orders = 0  # how many were given
        self.issued_s: float | None = None  # the time that the last ones bear
        self.ended_early: list[str] = []  # VMs whose peers heard the controller, and whose leases ended
        self._samples = self._averaging_left_s = 0.0
        self.paused = False  # by the last orders
        self._waiting: dict[str, SimVm] = {}
        self._finish = 0  # of the newest estimate of the end
        self._finished_vms: list[str] = []
        self.epochs = 0
        self.samples = 0.0
        self.working_s = 0.0  # of all peers together
        self.counts: Counter[str] = Counter()
        self.second: list[str] = []  # VMs that had peers when another one began a swarm
        self.joined_after_s: list[float] = []
        world.status_of = self.status

    # what the world tells

    def changed(self, change: str, vm: SimVm, at_s: float) -> None:
        """A VM was created, runs, got a notice, or ended."""
        if is_monitor(vm.vm):
            return
        if change == "ready":
            peer = self._peers[vm.vm] = self._new(vm)
            if self._model.waits:
                self._waiting[vm.vm] = vm
            else:
                self._start(vm)
            self._look_at_lease(vm, peer)
        elif change == "noticed":
            self._world.at(at_s + self._random.uniform(*_LEAVE_S), self._leave, vm)
        elif change == "ended" and vm.vm in self._peers:
            peer = self._peers.pop(vm.vm)
            self._waiting.pop(vm.vm, None)
            self._count(peer, -1)

    def _start(self, vm: SimVm) -> None:
        self._world.at(self._world.now_s + self._random.uniform(*self._model.dht_s), self._known, vm)

    def _known(self, vm: SimVm) -> None:
        self._set(vm, "starting", "dht")
        self._world.at(self._world.now_s + self._random.uniform(*self._model.join_s), self._join, vm)

    def _join(self, vm: SimVm) -> None:
        if self._set(vm, "dht", "training"):
            self.joined_after_s.append(self._world.now_s - vm.created_s)

    def _leave(self, vm: SimVm) -> None:
        if self._set(vm, "training", "leaving") or self._set(vm, "dht", "leaving"):
            self.counts["polite_leave"] += 1

    def _set(self, vm: SimVm, before: str, phase: str) -> bool:
        peer = self._peers.get(vm.vm)
        if peer is None or peer.phase != before or not vm.alive:
            return False
        self._count(peer, -1)
        peer.phase = phase
        self._count(peer, 1)
        self._world.touch(vm)
        return True

    def _count(self, peer: _Peer, by: int) -> None:
        """Before and after every change of a peer."""
        if peer.works:
            self._progress()
            self._working += by
            self._estimate()

    # what the controller tells them

    @property
    def waiting(self) -> bool:
        """Whether any is to be told whom to join."""
        return bool(self._waiting)

    def tell(self, seed: str, joinable: bool) -> None:
        """Those that wait hear whom to join, or that they begin the swarm."""
        for vm in [vm for name, vm in self._waiting.items() if joinable or name == seed]:
            del self._waiting[vm.vm]
            if not joinable:
                others = (peer for name, peer in self._peers.items() if name != vm.vm)
                self.second += [o.vm.vm for o in others if o.phase in ("starting", "dht", "training")]
            if self._set(vm, "waiting", "starting"):
                self._start(vm)

    def renew(self, paused: bool, issued_s: float) -> None:
        """Newer orders reached them: their leases are longer, and they wait or go on. `issued_s`: by the controller's clock."""
        self._renewed_s, self.issued_s = self._world.now_s, issued_s
        self._orders += 1
        for peer in self._peers.values():
            if peer.cut_s is None:
                self._hear(peer)
        if paused != self.paused:
            self._progress()
            self.paused = paused
            self.counts["pause"] += paused
            self._estimate()

    def _new(self, vm: SimVm) -> _Peer:
        peer = _Peer(
            vm, Lease(self._model.lease_s, self.issued_s or 0.0, lambda: self._lease_clock_s(vm)), self._orders, self._orders,
            "waiting" if self._model.waits else "starting",
        )  # fmt: skip
        if self._model.skew_s:
            peer.clock_ahead_s = self._random.uniform(-1.0, 1.0) * self._model.skew_s
            self.counts["vm_clock"] += 1
        return peer

    def _lease_clock_s(self, vm: SimVm) -> float:
        peer = self._peers.get(vm.vm)
        ahead_s = peer.clock_ahead_s if peer is not None and self._model.by_wall_clock else 0.0
        return self._world.now_s + ahead_s

    def set_clock(self, by_s: float) -> None:
        """A training peer's machine gets another time of day."""
        for name in self.working()[:1]:
            self._peers[name].clock_ahead_s += by_s
            self.counts["vm_clock"] += 1
            self._look_at_lease(self._peers[name].vm, self._peers[name])

    def _hear(self, peer: _Peer) -> None:
        if peer.heard < self._orders:
            peer.heard = self._orders
            peer.lease.received(self._model.lease_s, self.issued_s or 0.0)

    def _look_at_lease(self, vm: SimVm, peer: _Peer) -> None:
        peer.looks += 1
        self._lease_due(vm, peer, peer.looks)

    def _lease_due(self, vm: SimVm, peer: _Peer, look: int) -> None:
        """A lease may end now: it does, or is looked at again when it ends if it was renewed."""
        if self._peers.get(vm.vm) is not peer or look != peer.looks or peer.phase in ("failed", "done"):
            return
        now_s, lease_s = self._world.now_s, self._model.lease_s
        left_s = peer.lease.left_s()
        # A program that starts when the last orders are old hears from the others that nothing newer comes.
        if peer.heard == peer.first == self._orders:
            left_s = min(left_s, self._renewed_s + lease_s - now_s)
        if left_s > _SOON_S:
            self._world.at(now_s + left_s, self._lease_due, vm, peer, look)
            return
        if peer.cut_s is None and now_s - self._renewed_s < lease_s - 2 * _SOON_S:
            self.ended_early.append(vm.vm)
        self._expire(vm)

    def _expire(self, vm: SimVm) -> None:
        peer = self._peers[vm.vm]
        if peer.phase not in ("failed", "done"):
            self._count(peer, -1)
            peer.phase, peer.error = "failed", "lease expired"
            self.counts["lease_expired"] += 1
            self._world.program_ended(vm)

    # partitions

    def cut(self, vm: SimVm, for_s: float) -> None:
        """Nobody hears of this peer for a while; its VM runs."""
        peer = self._peers.get(vm.vm)
        if peer is None or not peer.works:
            return
        self._count(peer, -1)
        peer.cut_s = self._world.now_s
        self.counts["partition"] += 1
        self._world.at(peer.cut_s + for_s, self._heal, vm, peer)

    def _heal(self, vm: SimVm, peer: _Peer) -> None:
        if self._peers.get(vm.vm) is peer and peer.cut_s is not None:
            peer.cut_s = None
            self._count(peer, 1)
            self._hear(peer)
            self._look_at_lease(vm, peer)

    @property
    def working_count(self) -> int:
        """How many peers train now, heard by the others."""
        return self._working

    def working(self) -> list[str]:
        """VMs whose peers train now, heard by the others."""
        return [vm for vm, peer in self._peers.items() if peer.works]

    def heard(self) -> list[str]:
        """VMs whose peers are in the DHT now."""
        return [
            vm for vm, peer in self._peers.items()
            if peer.cut_s is None and peer.phase not in ("waiting", "starting", "failed")
        ]  # fmt: skip

    def finished(self) -> list[str]:
        """VMs whose peers did all epochs, gone ones too, in the order in which they were done."""
        return list(self._finished_vms)

    def status(self, vm: SimVm) -> Mapping[str, Any]:
        """What its program wrote into status.json."""
        peer = self._peers.get(vm.vm)
        if peer is None:
            return {}
        known = peer.phase not in ("waiting", "starting", "failed")
        return {
            "phase": peer.phase,
            "maddr": f"/ip4/{vm.address}/tcp/31337" if known else "",
            "error": peer.error,
        }

    # training

    def _progress(self) -> None:
        """Account for the time since the last change."""
        model, passed_s = self._model, self._world.now_s - self._at_s
        self._at_s = self._world.now_s
        if self.paused or not self._working or passed_s <= 0:
            return
        self.working_s += self._working * passed_s
        rate = self._working * model.sps
        while passed_s > 0:
            if self._averaging_left_s > 0:
                used_s = min(passed_s, self._averaging_left_s)
                self._averaging_left_s -= used_s
                passed_s -= used_s
                continue
            whole = int(passed_s // (model.target_batch_size / rate + model.averaging_s))
            if whole:  # a whole epoch from here ends where it began
                self.epochs += whole
                self.samples += whole * model.target_batch_size
                passed_s -= whole * (model.target_batch_size / rate + model.averaging_s)
                continue
            left_s = (model.target_batch_size - self._samples) / rate
            if passed_s < left_s:
                self._samples += rate * passed_s
                return
            passed_s -= left_s
            self.epochs += 1
            self.samples += model.target_batch_size
            self._samples, self._averaging_left_s = 0.0, model.averaging_s

    def _estimate(self) -> None:
        """When the last epoch ends, if nothing changes until then."""
        model = self._model
        if not model.max_epochs or self.paused or not self._working:
            return
        self._finish += 1
        rate = self._working * model.sps
        left = model.max_epochs - self.epochs
        seconds = self._averaging_left_s + (left * model.target_batch_size - self._samples) / rate
        seconds += max(0, left - 1) * model.averaging_s + model.averaging_s
        self._world.at(self._world.now_s + seconds, self._finished, self._finish)

    def _finished(self, estimate: int) -> None:
        if estimate != self._finish:
            return
        self._progress()
        if self.epochs < self._model.max_epochs:
            self._estimate()
            return
        for peer in list(self._peers.values()):
            if self._set(peer.vm, "training", "done"):
                self._finished_vms.append(peer.vm.vm)
                self._world.program_ended(peer.vm)

    def settle(self) -> None:
        """Count what was trained until now."""
        self._progress()
