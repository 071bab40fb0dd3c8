"""Carries out the preemption schedule of an emulated cloud, using the host's timers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cloud.local.host import faults
from cloud.local.host.vms import Vm
from cloud.local.options import PreemptOptions


class Preemptions:
    """`after(seconds, do)` sets a timer, `trains` says whether a VM's program trains, `preempt` preempts a VM, and
    `on_notice` publishes a notice.
    """

    def __init__(
        self,
        options: PreemptOptions,
        vms: Mapping[str, Vm],
        after: Callable[[float, Callable[[], None]], None],
        trains: Callable[[Vm], bool],
        preempt: Callable[[Vm], None],
        on_notice: Callable[[Vm], None],
    ) -> None:
        self._options, self._vms, self._after, self._trains = options, vms, after, trains
        self._preempt, self._on_notice = preempt, on_notice
        self._training = False

    def started(self, vm: Vm) -> None:
        """Schedule the random preemption of a VM whose program has started."""
        if not faults.belongs(vm.vm, self._options.slot):
            return
        lead_s = self._options.notice_s or 0.0
        lifetime_s = faults.lifetime_s(self._options.seed, vm.vm, self._options.rate_per_h)
        if lifetime_s is not None:
            self._after(max(0.0, lifetime_s - lead_s), lambda: self._announce(vm))

    def tick(self) -> None:
        """Start the clock of `at_s` once the first VM of the slot (or any VM) trains."""
        if self._training or not self._options.at_s:
            return
        running = (vm for vm in self._vms.values() if vm.state == "running" and vm.billed)
        if any(faults.belongs(vm.vm, self._options.slot) and self._trains(vm) for vm in running):
            self._training = True
            lead_s = self._options.notice_s or 0.0
            for at_s in self._options.at_s:
                self._after(max(0.0, at_s - lead_s), lambda at_s=at_s: self._preempt_one(at_s))

    def give_notice(self, vm: Vm, notice_s: float) -> None:
        """Announce that `vm` will be preempted in `notice_s` seconds, and preempt it then."""
        if vm.alive:
            vm.notice_at_s = time.time() + notice_s
            self._on_notice(vm)
            self._after(notice_s, lambda: self._preempt(vm))

    def _announce(self, vm: Vm) -> None:
        if self._options.notice_s is None:
            self._preempt(vm)
        else:
            self.give_notice(vm, self._options.notice_s)

    def _preempt_one(self, at_s: float) -> None:
        running = [vm.vm for vm in self._vms.values() if vm.state == "running" and vm.billed]
        alive = [vm for vm in running if faults.belongs(vm, self._options.slot)]
        name = faults.victim(self._options.seed, at_s, alive)
        if name:
            self._announce(self._vms[name])
