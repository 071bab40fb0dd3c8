"""A model of the peers on a simulated cloud: boot, join, train, average, leave, and exit when the lease expires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from cloud.provider import is_monitor
from cloud.sim import SimVm, SimWorld
from experiments.wire.lease import Lease
from orchestrator.simulation.checkpoints import SimCheckpoints

_SOON_S = 1e-3
_LOOK_S = 60.0  # period of noticing completed uploads
_LEAVE_S = (2.0, 20.0)  # from a preemption notice until the peer has left the swarm


@dataclass(frozen=True, slots=True)
class PeerModel:
    """Parameters of the peers."""

    sps: float = 80.0  # samples per second and peer
    target_batch_size: int = 32768
    averaging_s: float = 8.0
    dht_s: tuple[float, float] = (5.0, 20.0)  # from program start to its address being known
    join_s: tuple[float, float] = (15.0, 60.0)  # from known address to training: the download of the state
    max_epochs: int = 0  # peers are done after this; 0: never
    lease_s: float = 600.0
    skew_s: float = 0.0  # maximum error of VM clocks
    by_wall_clock: bool = False  # leases by the VM's time of day, to test that the checks fail
    checkpoint_every: int = (
        0  # epochs from one checkpoint to the next; 0: none, and all lost at once keep the state
    )
    checkpoint_every_s: float | None = None  # in place of that number of epochs, if there are checkpoints
    upload_s: tuple[float, float] = (5.0, 60.0)  # of a checkpoint
    checked_records: bool = True  # records of all epochs are kept, to check which of them count
    min_peers: int = 1  # `Peers.below_s` counts the time with fewer
    waits: bool = False  # it waits to be told which peer to join, as on rented VMs


@dataclass(slots=True, eq=False)
class _Peer:
    vm: SimVm
    lease: Lease
    first: int  # number of the orders it started with
    latest: int  # number of the newest orders received
    phase: str = "starting"
    clock_ahead_s: float = 0.0
    checks: int = 0  # scheduled lease checks; only the newest one is valid
    cut_s: float | None = None  # unreachable since then
    error: str = ""

    @property
    def works(self) -> bool:
        return self.phase == "training" and self.cut_s is None


class Peers:
    """All peers of a run, driven by the world's changes. A change takes O(1)."""

    def __init__(self, world: SimWorld, model: PeerModel, seed: int | str) -> None:
        self._world, self._model = world, model
        self._random = Random(f"peers {seed}")
        self._peers: dict[str, _Peer] = {}  # by VM, those alive
        self._working = 0
        self._at_s = self._renewed_s = world.now_s
        self._orders = 0  # number of orders given
        self.issued_s: float | None = None  # timestamp of the last orders
        self.ended_early: list[
            str
        ] = []  # VMs whose leases expired although their peers were in contact with the controller
        self._samples = self._averaging_left_s = 0.0
        self.paused = False  # according to the last orders
        self._waiting: dict[str, SimVm] = {}
        self._finish = 0  # number of the newest estimate of the end
        self._finished_vms: list[str] = []
        self.epochs = 0
        self.samples = 0.0
        self.working_s = 0.0  # sum over all peers
        self.below_s = 0.0  # time with fewer than `min_peers` that train and are reachable
        self.lost_samples = 0.0  # with all peers: trained, and not in the state that training went on from
        self.counts: Counter[str] = Counter()
        self.second: list[str] = []  # VMs with peers at the time another peer started a swarm
        self.joined_after_s: list[float] = []
        self.on_training: Callable[[SimVm], None] = lambda _: None  # called when a peer begins to train
        every = model.checkpoint_every
        self.checkpoints = (
            SimCheckpoints(
                every, model.upload_s, seed, every_s=model.checkpoint_every_s, records=model.checked_records
            )
            if every
            else None
        )
        self._holders: set[str] = set()  # VMs that have the state, if there are checkpoints
        if self.checkpoints is not None:
            world.at(world.now_s + _LOOK_S, self._look)
        world.status_of = self.status

    # changes of the world

    def changed(self, change: str, vm: SimVm, at_s: float) -> None:
        """Handle a VM that was created, is ready, got a preemption notice, or ended."""
        if is_monitor(vm.vm):
            return
        if change == "ready":
            peer = self._peers[vm.vm] = self._new(vm)
            if self._model.waits:
                self._waiting[vm.vm] = vm
            else:
                self._start(vm)
            self._check_lease(vm, peer)
        elif change == "noticed":
            self._world.at(at_s + self._random.uniform(*_LEAVE_S), self._leave, vm)
        elif change == "ended" and vm.vm in self._peers:
            if self.checkpoints is not None:
                self._progress()  # with this peer
            peer = self._peers.pop(vm.vm)
            self._waiting.pop(vm.vm, None)
            self._count(peer, -1)
            self._hold(peer, "ended")

    def _start(self, vm: SimVm) -> None:
        self._world.at(self._world.now_s + self._random.uniform(*self._model.dht_s), self._known, vm)

    def _known(self, vm: SimVm) -> None:
        self._set(vm, "starting", "dht")
        self._world.at(self._world.now_s + self._random.uniform(*self._model.join_s), self._join, vm)

    def _join(self, vm: SimVm) -> None:
        if self._set(vm, "dht", "training"):
            self.joined_after_s.append(self._world.now_s - vm.created_s)
            self.on_training(vm)

    def _leave(self, vm: SimVm) -> None:
        if self._set(vm, "training", "leaving") or self._set(vm, "dht", "leaving"):
            self.counts["polite_leave"] += 1

    def _set(self, vm: SimVm, before: str, phase: str) -> bool:
        peer = self._peers.get(vm.vm)
        if peer is None or peer.phase != before or not vm.alive:
            return False
        self._count(peer, -1)
        self._hold(peer, phase)
        peer.phase = phase
        self._count(peer, 1)
        self._world.touch(vm)
        return True

    def _hold(self, peer: _Peer, phase: str) -> None:
        """Update who has the state when a peer's phase changes: those that train, reachable or not."""
        store, vm, now_s = self.checkpoints, peer.vm.vm, self._world.now_s
        if store is None or phase == "done":
            return
        if phase == "training":
            self._progress()  # without this peer
            if not self._holders and self.epochs:
                self.counts["all_lost"] += 1
                self.lost_samples += self.samples + self._samples
                self.epochs = store.resumed(self.epochs, now_s)
                self.samples = float(self.epochs * self._model.target_batch_size)
                self._samples = self._averaging_left_s = 0.0
                self.lost_samples -= self.samples
            store.came(vm, now_s, alone=not self._holders)
            self._holders.add(vm)
        elif vm in self._holders:
            self._progress()
            store.left(vm, now_s)
            self._holders.discard(vm)

    def _look(self) -> None:
        """Let the provider's lists show completed uploads."""
        assert self.checkpoints is not None
        self._progress()
        self.checkpoints.settle(self._world.now_s)
        for vm in self.checkpoints.news():
            if vm in self._peers:
                self._world.touch(self._peers[vm].vm)
        self._world.at(self._world.now_s + _LOOK_S, self._look)

    def _count(self, peer: _Peer, by: int) -> None:
        """Update the count of working peers; called before and after every change of a peer."""
        if peer.works:
            self._progress()
            self._working += by
            self._estimate()

    # orders of the controller

    @property
    def waiting(self) -> bool:
        """Whether any peer waits to be told which peer to join."""
        return bool(self._waiting)

    def tell(self, seed: str, joinable: bool) -> None:
        """Tell waiting peers which peer to join, or to start the swarm."""
        for vm in [vm for name, vm in self._waiting.items() if joinable or name == seed]:
            del self._waiting[vm.vm]
            if not joinable:
                others = (peer for name, peer in self._peers.items() if name != vm.vm)
                self.second += [o.vm.vm for o in others if o.phase in ("starting", "dht", "training")]
            if self._set(vm, "waiting", "starting"):
                self._start(vm)

    def renew(self, paused: bool, issued_s: float) -> None:
        """Deliver newer orders: extend leases, pause or resume. `issued_s` is by the controller's clock."""
        self._renewed_s, self.issued_s = self._world.now_s, issued_s
        self._orders += 1
        for peer in self._peers.values():
            if peer.cut_s is None:
                self._receive_orders(peer)
        if paused != self.paused:
            self._progress()
            self.paused = paused
            self.counts["pause"] += paused
            self._estimate()

    def _new(self, vm: SimVm) -> _Peer:
        by_wall_clock = self._model.by_wall_clock
        ticks_s = (lambda: self._wall_clock_s(vm)) if by_wall_clock else (lambda: self._world.now_s)
        peer = _Peer(
            vm, Lease(self._model.lease_s, self.issued_s or 0.0, ticks_s), self._orders, self._orders,
            "waiting" if self._model.waits else "starting",
        )  # fmt: skip
        if self._model.skew_s:
            peer.clock_ahead_s = self._random.uniform(-1.0, 1.0) * self._model.skew_s
            self.counts["vm_clock"] += 1
        return peer

    def _wall_clock_s(self, vm: SimVm) -> float:
        peer = self._peers.get(vm.vm)
        return self._world.now_s + (peer.clock_ahead_s if peer is not None else 0.0)

    def set_clock(self, by_s: float) -> None:
        """Change the clock of a training peer's machine."""
        for name in self.working()[:1]:
            self._peers[name].clock_ahead_s += by_s
            self.counts["vm_clock"] += 1
            self._check_lease(self._peers[name].vm, self._peers[name])

    def _receive_orders(self, peer: _Peer) -> None:
        if peer.latest < self._orders:
            peer.latest = self._orders
            peer.lease.received(self._model.lease_s, self.issued_s or 0.0)

    def _check_lease(self, vm: SimVm, peer: _Peer) -> None:
        peer.checks += 1
        self._lease_due(vm, peer, peer.checks)

    def _lease_due(self, vm: SimVm, peer: _Peer, check: int) -> None:
        """Expire the lease, or schedule another check if it was renewed."""
        if self._peers.get(vm.vm) is not peer or check != peer.checks or peer.phase in ("failed", "done"):
            return
        now_s, lease_s = self._world.now_s, self._model.lease_s
        left_s = peer.lease.left_s()
        # A peer that starts with old orders learns from the others that there are no newer ones.
        if peer.latest == peer.first == self._orders:
            left_s = min(left_s, self._renewed_s + lease_s - now_s)
        if left_s > _SOON_S:
            self._world.at(now_s + left_s, self._lease_due, vm, peer, check)
            return
        if peer.cut_s is None and now_s - self._renewed_s < lease_s - 2 * _SOON_S:
            self.ended_early.append(vm.vm)
        self._expire(vm)

    def _expire(self, vm: SimVm) -> None:
        peer = self._peers[vm.vm]
        if peer.phase not in ("failed", "done"):
            self._count(peer, -1)
            self._hold(peer, "failed")
            peer.phase, peer.error = "failed", "lease expired"
            self.counts["lease_expired"] += 1
            self._world.program_ended(vm)

    # partitions

    def cut(self, vm: SimVm, for_s: float) -> None:
        """Make this peer unreachable for a while; its VM keeps running."""
        peer = self._peers.get(vm.vm)
        if peer is None or not peer.works:
            return
        self._count(peer, -1)
        if self.checkpoints is not None:  # it still has the state, but cannot reach the store
            self.checkpoints.left(vm.vm, self._world.now_s)
        peer.cut_s = self._world.now_s
        self.counts["partition"] += 1
        self._world.at(peer.cut_s + for_s, self._heal, vm, peer)

    def _heal(self, vm: SimVm, peer: _Peer) -> None:
        if self._peers.get(vm.vm) is peer and peer.cut_s is not None:
            if self.checkpoints is not None and vm.vm in self._holders:
                self._progress()  # without this peer
                self.checkpoints.came(vm.vm, self._world.now_s, alone=False)
            peer.cut_s = None
            self._count(peer, 1)
            self._receive_orders(peer)
            self._check_lease(vm, peer)

    @property
    def working_count(self) -> int:
        """Number of peers that are training and reachable."""
        return self._working

    def working(self) -> list[str]:
        """VMs whose peers are training and reachable."""
        return [vm for vm, peer in self._peers.items() if peer.works]

    def visible(self) -> list[str]:
        """VMs whose peers are in the DHT."""
        return [
            vm for vm, peer in self._peers.items()
            if peer.cut_s is None and peer.phase not in ("waiting", "starting", "failed")
        ]  # fmt: skip

    def finished(self) -> list[str]:
        """VMs whose peers completed all epochs, including ended VMs, in order of completion."""
        return list(self._finished_vms)

    def status(self, vm: SimVm) -> Mapping[str, Any]:
        """Return the content of the peer's status.json."""
        peer = self._peers.get(vm.vm)
        if peer is None:
            return {}
        known = peer.phase not in ("waiting", "starting", "failed")
        status: dict[str, Any] = {
            "phase": peer.phase,
            "maddr": f"/ip4/{vm.address}/tcp/31337" if known else "",
            "error": peer.error,
        }
        if self.checkpoints is not None:
            status["checkpoints"] = self.checkpoints.status(vm.vm)
        return status

    # training

    def _progress(self) -> None:
        """Account for training since the last change."""
        model, passed_s = self._model, self._world.now_s - self._at_s
        self._at_s = self._world.now_s
        if self._working < model.min_peers:
            self.below_s += max(0.0, passed_s)
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
            if whole:  # whole epochs leave the position within the epoch unchanged
                self._ended(whole, passed_s, rate)
                self.epochs += whole
                self.samples += whole * model.target_batch_size
                passed_s -= whole * (model.target_batch_size / rate + model.averaging_s)
                continue
            left_s = (model.target_batch_size - self._samples) / rate
            if passed_s < left_s:
                self._samples += rate * passed_s
                return
            self._ended(1, passed_s, rate)
            passed_s -= left_s
            self.epochs += 1
            self.samples += model.target_batch_size
            self._samples, self._averaging_left_s = 0.0, model.averaging_s

    def counted_s(self) -> tuple[float, float]:
        """`working_s` and `below_s` as of now, without accounting for the training."""
        passed_s = self._world.now_s - self._at_s
        worked_s = 0.0 if self.paused else self._working * passed_s
        below_s = passed_s if self._working < self._model.min_peers else 0.0
        return self.working_s + worked_s, self.below_s + below_s

    def _ended(self, count: int, passed_s: float, rate: float) -> None:
        """Tell the checkpoints of the next `count` epochs, which end within the last `passed_s` seconds."""
        if self.checkpoints is None:
            return
        model, working = self._model, self.working()
        first_s = self._world.now_s - passed_s + (model.target_batch_size - self._samples) / rate
        period_s = model.target_batch_size / rate + model.averaging_s
        for n in range(count):
            self.checkpoints.ended(self.epochs + 1 + n, first_s + n * period_s, working)

    def _estimate(self) -> None:
        """Schedule the end of the last epoch, assuming that nothing changes until then."""
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
        """Account for training up to now."""
        self._progress()
