"""The roster of VMs for the monitor, and the signed orders for the peers.

Both are files in `<run>/monitor`. Orders are reissued when a VM is added or removed, when the run pauses or
resumes, when its last epoch is decided, and every quarter of their lease. A peer that gets no orders for a full
lease knows that it has no controller.
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
from orchestrator.core.indexed_state import MAX_ADDRESSES
from orchestrator.core.observations import roster
from orchestrator.core.state import RunState, Slot, SlotState
from orchestrator.launch.keys import VmKeys, run_key, vm_keys


class RosterFile:
    """Writes roster.json and orders.bin, each only when its content changes."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder, self._folder = run_folder, run_folder / "monitor"
        self._slots: tuple[Slot, ...] | None = None  # slots of the last roster written
        self._roster = b""
        self._orders: Orders | None = None
        self._keys: dict[str, VmKeys] = {}
        self._time = OrdersTime()

    def public_key(self) -> str:
        """The public key of the orders' signature. Raises FileNotFoundError after the run's end."""
        return run_key(self._run_folder)[1]

    def write(self, state: RunState, vms: Iterable[tuple[str, str, int]], now_s: float) -> None:
        """Write both files if needed.

        Called at each tick, with every VM (name, slot, generation) the run ever had. The allowlist contains
        every VM until it is gone, the next VM of each waiting slot before it is requested (other peers may
        contact the first peer before the monitor distributes new orders), and the monitor. Raises OrdersError
        ("size") if there are too many for one record, OSError if a file cannot be written.
        """
        if state.ended or state.stop_status:
            # Orders are no longer renewed, so a peer that cannot be terminated (the provider's API is down, say) exits
            # when its lease expires. At least three quarters of the lease are left, longer than a peer takes to leave.
            # The keys may also be removed soon.
            return
        changed = self._slots is not state.slots
        if changed:
            self._write_roster(state, vms)
        last = self._orders or self._last_orders(state.spec.run_id)
        lease_s = state.spec.lease_s
        if last is not None and not self._time.due(now_s, last.issued_s, lease_s):
            peers = self._allowed(state) if changed else last.peers
            if (last.peers, last.paused, last.last_epoch) == (peers, state.paused, state.last_epoch):
                self._orders, self._slots = last, state.slots
                return
        version = int(1000 * now_s)
        if last is not None:  # peers follow the highest version
            version = max(version, last.version + 1)
        issued_s = self._time.give(now_s, None if last is None else last.issued_s, lease_s)
        peers = self._allowed(state)
        until_s = issued_s + lease_s
        orders = Orders(state.spec.run_id, version, issued_s, until_s, state.paused, peers, state.last_epoch)
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
        document = {"seed": state.seed, "join": state.maddrs()[:MAX_ADDRESSES], "peers": peers}
        content = json.dumps(document).encode()
        if content != self._roster:
            self._replace("roster.json", content)
            self._roster = content

    def _allowed(self, state: RunState) -> tuple[OrderPeer, ...]:
        held = {vm for slot in state.slots for vm in (slot.vm, slot.ending) if vm}
        held |= {state.vm_name(s) for s in state.slots if s.state is SlotState.WAITING and not s.blocked}
        # One record holds at most MAX_PEERS; VMs with announced preemptions are dropped first.
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

    def _last_orders(self, run_id: str) -> Orders | None:
        """The last orders of an earlier process of this controller."""
        try:
            blob = (self._folder / ORDERS_FILE).read_bytes()
            return verify(blob, run_key(self._run_folder)[1], run_id, -1)
        except (
            FileNotFoundError,
            OrdersError,
        ):  # a damaged file is replaced; the time-based version makes the new orders newer
            return None

    def _replace(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = self._folder / f"{name}.new"
        fresh.write_bytes(content)
        os.replace(fresh, self._folder / name)
