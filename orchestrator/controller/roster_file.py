"""What the controller says of its VMs: the roster the monitor reads by, and the signed orders the peers obey.

Both lie in `<run>/monitor`. The orders are given anew when a VM comes or goes, when the run pauses or goes on,
and each quarter of their lease, so that peers that hear nothing for a lease know that nobody looks after them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from experiments.wire.lease import OrdersTime
from experiments.wire.orders import (
    MAX_PEERS,
    ORDERS_FILE,
    OrderPeer,
    Orders,
    OrdersError,
    record_key_digest,
    sign,
    verify,
)
from orchestrator.core.events import MONITOR
from orchestrator.core.observations import roster
from orchestrator.core.state import RunState, Slot, SlotState
from orchestrator.launch.keys import VmKeys, run_key, vm_keys

_JOIN_AT = 16  # addresses that VMs are told: the first that answers is enough


class RosterFile:
    """Writes roster.json and orders.bin, each only when there is something new to say."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder, self._folder = run_folder, run_folder / "monitor"
        self._slots: tuple[Slot, ...] | None = None  # that the roster tells of
        self._roster = b""
        self._orders: Orders | None = None
        self._keys: dict[str, VmKeys] = {}
        self._time = OrdersTime()

    def public_key(self) -> str:
        """The public half of the key that signs the orders. Raises FileNotFoundError after the run's end."""
        return run_key(self._run_folder)[1]

    def write(self, state: RunState, vms: Iterable[tuple[str, str, int]], now_s: float) -> None:
        """Called at each tick, with every VM (name, slot, generation) the run ever had.

        A VM is allowed until it is gone, and the next one of a slot that waits before it is requested: the first
        peer may be asked by the others sooner than the monitor comes by. The monitor always is. Raises OrdersError ("size") when
        they are too many for one record, OSError when a file cannot be written.
        """
        if state.ended or state.stop_status:
            # Whatever cannot be told to end (the provider's API is down, say) ends when its lease does. Three quarters
            # of it are left, longer than a peer takes to leave. Later the keys may be forgotten, too.
            return
        changed = self._slots is not state.slots
        if changed:
            self._write_roster(state, vms)
        last = self._orders or self._earlier(state.spec.run_id)
        lease_s = state.spec.lease_s
        if last is not None and not self._time.due(now_s, last.issued_s, lease_s):
            peers = self._allowed(state) if changed else last.peers
            if (last.peers, last.paused) == (peers, state.paused):
                self._orders, self._slots = last, state.slots
                return
        version = int(1000 * now_s)
        if last is not None:  # peers obey the greatest version
            version = max(version, last.version + 1)
        issued_s = self._time.give(now_s, None if last is None else last.issued_s, lease_s)
        peers = self._allowed(state)
        orders = Orders(state.spec.run_id, version, issued_s, issued_s + lease_s, state.paused, peers)
        self._replace(ORDERS_FILE, sign(orders, run_key(self._run_folder)[0]))
        self._orders, self._slots = orders, state.slots

    def _write_roster(self, state: RunState, vms: Iterable[tuple[str, str, int]]) -> None:
        peers = [
            {
                "vm": e.vm,
                "slot": e.slot,
                "generation": e.generation,
                "record_public_key": self._keys_of(e.vm).record_public,
                "maddr": e.maddr,
                "peer_id": self._keys_of(e.vm).peer_id,
            }
            for e in roster(state, vms)
        ]
        told = {"seed": state.seed, "join": state.maddrs()[:_JOIN_AT], "peers": peers}
        content = json.dumps(told).encode()
        if content != self._roster:
            self._replace("roster.json", content)
            self._roster = content

    def _allowed(self, state: RunState) -> tuple[OrderPeer, ...]:
        held = {vm for slot in state.slots for vm in (slot.vm, slot.ending) if vm}
        held |= {state.vm_name(s) for s in state.slots if s.state is SlotState.WAITING and not s.blocked}
        # One record holds so many; those that leave anyway make room.
        announced = sorted(s.ending for s in state.slots if s.ending and not s.blocked)
        held -= set(announced[: max(0, len(held) - max(MAX_PEERS, len(state.slots)))])
        peers = [
            OrderPeer(vm, self._keys_of(vm).peer_id, record_key_digest(self._keys_of(vm).record_public))
            for vm in sorted(held)
        ]
        return (OrderPeer(MONITOR, self._keys_of(MONITOR).peer_id, ""), *peers)

    def _keys_of(self, vm: str) -> VmKeys:
        if vm not in self._keys:
            self._keys[vm] = vm_keys(self._run_folder, vm)
        return self._keys[vm]

    def _earlier(self, run_id: str) -> Orders | None:
        """The orders an earlier process of this controller gave last."""
        try:
            blob = (self._folder / ORDERS_FILE).read_bytes()
            return verify(blob, run_key(self._run_folder)[1], run_id, -1)
        except (FileNotFoundError, OrdersError):  # a damaged file is written anew; time alone makes it newer
            return None

    def _replace(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = self._folder / f"{name}.new"
        fresh.write_bytes(content)
        os.replace(fresh, self._folder / name)
