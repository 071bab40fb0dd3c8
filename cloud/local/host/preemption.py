"""Carries out the preemption schedule of an emulated cloud with the host's timers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cloud.local.host import faults
from cloud.local.host.vms import Vm
from cloud.local.options import PreemptOptions


class Preemptions:
    """`after(seconds, do)` sets a timer, `take` takes a VM back, `announced` writes down a notice."""

    def __init__(
        self,
        options: PreemptOptions,
        vms: Mapping[str, Vm],
        after: Callable[[float, Callable[[], None]], None],
        take: Callable[[Vm], None],
        announced: Callable[[Vm], None],
    ) -> None:
        self._options, self._vms, self._after, self._take, self._announced = (
            options,
            vms,
            after,
            take,
            announced,
        )
        self._begun = False

    def started(self, vm: Vm) -> None:
        """A VM's program was started: draw its lifetime; with the first (of the slot) the times `at_s` begin."""
        lead_s = self._options.notice_s or 0.0
        if not faults.belongs(vm.vm, self._options.slot):
            return
        if not self._begun:
            self._begun = True
            for at_s in self._options.at_s:
                self._after(max(0.0, at_s - lead_s), lambda at_s=at_s: self._take_one(at_s))
        lifetime_s = faults.lifetime_s(self._options.seed, vm.vm, self._options.rate_per_h)
        if lifetime_s is not None:
            self._after(max(0.0, lifetime_s - lead_s), lambda: self._announce(vm))

    def give_notice(self, vm: Vm, notice_s: float) -> None:
        """Say that `vm` will be taken in so many seconds, and do so."""
        if vm.alive:
            vm.notice_at_s = time.time() + notice_s
            self._announced(vm)
            self._after(notice_s, lambda: self._take(vm))

    def _announce(self, vm: Vm) -> None:
        if self._options.notice_s is None:
            self._take(vm)
        else:
            self.give_notice(vm, self._options.notice_s)

    def _take_one(self, at_s: float) -> None:
        running = [vm.vm for vm in self._vms.values() if vm.state == "running" and vm.billed]
        alive = [vm for vm in running if faults.belongs(vm, self._options.slot)]
        name = faults.victim(self._options.seed, at_s, alive)
        if name:
            self._announce(self._vms[name])
