"""`SimCloud`: one run's client of a simulated cloud, which keeps the provider contract or, with faults, violates it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cloud.provider import (
    AmbiguousError,
    EndedError,
    InvalidRequestError,
    LaunchRequest,
    NoCapacityError,
    Observed,
    Offer,
    Owned,
    TransientError,
)
from cloud.sim.faults import Faults
from cloud.sim.world import SimVm, SimWorld, VirtualClock

_LATENCY_S = (0.2, 2.0)  # of every call except `request`, which lasts until the VM runs
_REFUSAL_S = (2.0, 12.0)  # latency of a refused request
_DEADLINE_S = 900.0  # after which a caller without an answer gives up
_LATE_S = 3600.0
_OLD_VIEWS = 6
LAG_S = 90.0  # how long a VM may be missing from lists; longer violates the contract
_BROKEN = (
    KeyError("region"),
    TypeError("'NoneType' object is not subscriptable"),
    RecursionError("too deep"),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a call, and when its caller receives it. The call itself took effect when it was made."""

    at_s: float
    result: Any = None
    error: Exception | None = None  # a ProviderError, unless the provider's code is broken


class SimCloud:
    """A provider (see `cloud.provider`) in virtual time.

    `begin` makes a call and returns the reply with its time. The methods of the provider contract do the same and
    advance the virtual clock to that time.
    """

    name = "sim"

    def __init__(
        self,
        run_folder: Path,
        world: SimWorld,
        clock: VirtualClock,
        faults: Faults | None = None,
        seed: int | str = 0,
    ) -> None:
        """The run is named after the folder, which only `collect` writes to."""
        self.run = run_folder.name
        self._folder, self._world, self._clock = run_folder, world, clock
        self.faults = faults or Faults()
        self._random = Random(f"client {seed}")
        self._views: list[list[Observed]] = []
        self._unlisted_s: dict[str, float] = {}  # since when living VMs have been missing from lists
        self._terminated: set[str] = set()  # names whose termination was requested
        self.denied: dict[str, float] = {}
        """VMs that the provider reported, against its contract, as not existing: until when it did so."""
        self._closed = False

    # the provider's contract

    def offers(self, location: str, accelerator: str, use_spot: bool) -> Sequence[Offer]:
        """Return what the place rents, at its current price."""
        place = self._world.places.get(location)
        if place is None or place.accelerator != accelerator:
            return []
        usd = self._world.price(location, use_spot)
        return [Offer(location, place.instance, accelerator, use_spot, usd, "the simulated market")]

    def request(self, request: LaunchRequest) -> None:
        """Rent a VM. Raises NoCapacityError, InvalidRequestError, TransientError, AmbiguousError."""
        self._wait(self.begin("request", request))

    def observe(self) -> Sequence[Observed]:
        """All VMs of the run. Raises TransientError."""
        return self._wait(self.begin("observe"))

    def terminate(self, vm: str) -> None:
        """End a VM. Raises TransientError, AmbiguousError."""
        self._wait(self.begin("terminate", vm))

    def collect(self, vm: str) -> str:
        """Return a folder with the program's last status. Raises InvalidRequestError for an unknown VM."""
        self._world.advance_to(self._clock.now_s)
        found = self._world.vms.get((self.run, vm))
        if found is None:
            raise InvalidRequestError(f"there is no VM named {vm} in this run")
        folder = self._folder / "vms" / vm
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "status.json").write_text(json.dumps(dict(self._world.status_of(found))))
        return str(folder)

    def list_ours(self, owner: str) -> Sequence[Owned]:
        """Return every living VM with the owner's label. Raises TransientError."""
        return self._wait(self.begin("list_ours", owner))

    def release(self, owned: Owned) -> None:
        """End one of these VMs. Raises InvalidRequestError without the label, TransientError, AmbiguousError."""
        self._wait(self.begin("release", owned))

    def close(self) -> None:
        """End everything of this run. Raises TransientError while any VM is alive."""
        self._wait(self.begin("close"))

    def _wait(self, reply: Reply) -> Any:
        self._clock.advance_to(reply.at_s)
        self._world.advance_to(self._clock.now_s)
        if reply.error is not None:
            raise reply.error
        return reply.result

    # calls that take time

    def begin(self, method: str, *arguments: Any) -> Reply:
        """Make a call now. It takes effect at once; the reply says when the caller learns of it."""
        world = self._world
        world.advance_to(self._clock.now_s)
        now_s = world.now_s
        skew_s = self.faults.strike("skew", now_s)
        world.skew_s = world.skew_s if skew_s is None else skew_s
        latency_s = self._random.uniform(*_LATENCY_S)
        if self.faults.strike("outage", now_s) is not None:
            return Reply(now_s + latency_s, error=TransientError("the provider's API does not answer"))
        if self.faults.strike("transient", now_s) is not None:
            return Reply(now_s + latency_s, error=TransientError("the provider's API failed"))
        changes = method != "observe" and method != "list_ours"
        if changes and self.faults.strike("lost_request", now_s) is not None:
            return Reply(now_s + _DEADLINE_S, error=AmbiguousError(f"{method}: no answer"))
        if method == "request" and (late_s := self.faults.strike("late_request", now_s)) is not None:
            world.at(now_s + late_s, self._late, *arguments)
            return Reply(now_s + _DEADLINE_S, error=AmbiguousError(f"{method}: no answer"))
        broken = self._random.choice(_BROKEN) if self.faults.strike("broken", now_s) is not None else None
        if broken is not None and self._random.random() < 0.5:
            return Reply(now_s + latency_s, error=broken)
        act: Callable[..., Reply] = getattr(self, f"_{method}")
        reply = act(*arguments, now_s + latency_s)
        if broken is not None:
            return Reply(now_s + latency_s, error=broken)
        if self.faults.strike("slow_reply", now_s) is not None:
            reply = Reply(now_s + _LATE_S, reply.result, reply.error)
        if self.faults.strike("lost_reply", now_s) is not None:
            error = AmbiguousError if changes else TransientError
            return Reply(now_s + _DEADLINE_S, error=error(f"{method}: no answer"))
        if method == "observe" and reply.error is None:
            self._note_unlisted({seen.vm for seen in reply.result}, now_s)
        return reply

    def _note_unlisted(self, shown: Collection[str], now_s: float) -> None:
        """Remember which living VMs a list lacked. Lists that did not reach the caller do not count."""
        self._unlisted_s = {
            vm.vm: self._unlisted_s.get(vm.vm, now_s)
            for vm in self._world.alive(self.run)
            if vm.vm not in shown
        }
        self.denied |= {vm: now_s for vm, since_s in self._unlisted_s.items() if now_s - since_s > LAG_S}

    def _late(self, request: LaunchRequest) -> None:
        """Complete a launch that was reported lost but was in progress all the time."""
        if request.vm not in self._terminated:
            self._request(request, self._world.now_s)

    def _request(self, request: LaunchRequest, soon_s: float) -> Reply:
        world, faults = self._world, self.faults
        now_s, name = world.now_s, request.vm
        if self._closed:
            return Reply(soon_s, error=EndedError(f"{self.run} has ended, so nothing more is rented for it"))
        if not name or "/" in name or name.startswith("."):
            return Reply(soon_s, error=InvalidRequestError(f"'{name}' is not a valid VM name"))
        if request.offer.location not in world.places:
            return Reply(
                soon_s, error=InvalidRequestError(f"{request.offer.location} is not a place in this cloud")
            )
        vm = world.vms.get((self.run, name))
        if vm is None:
            hidden_s = faults.strike("hidden", now_s)
            try:
                vm = world.create(self.run, request, hidden_s or 0.0)
            except NoCapacityError as error:
                return Reply(now_s + self._random.uniform(*_REFUSAL_S), error=error)
            if hidden_s is not None and hidden_s > LAG_S:
                self.denied[name] = vm.visible_s
            if faults.strike("created_but_error", now_s) is not None:
                self.denied[name] = now_s
                return Reply(soon_s, error=TransientError(f"{name}: the provider's API failed"))
            if faults.strike("created_but_refused", now_s) is not None:
                self.denied[name] = now_s
                return Reply(soon_s, error=NoCapacityError(f"{name}: no room"))
        booted_s = vm.created_s + (vm.place.boot_s[1] if vm.billed else 1.0)
        return Reply(max(soon_s, booted_s) if vm.alive else soon_s)

    def _observe(self, soon_s: float) -> Reply:
        now_s, faults = self._world.now_s, self.faults
        view = self._world.listing(self.run)
        self._views = [*self._views[-_OLD_VIEWS:], view]
        lacks_s = faults.strike("partial", now_s)
        if lacks_s is not None:
            view = [seen for seen in view if not self._lacks(seen.vm, lacks_s)]
        if faults.strike("stale", now_s) is not None:
            view = self._random.choice(self._views[:-1] or self._views)
        if faults.strike("duplicate", now_s) is not None:
            view = [*view, *view]
            self._random.shuffle(view)
        return Reply(soon_s, view)

    def _lacks(self, vm: str, size_s: float) -> bool:
        return zlib.crc32(vm.encode()) % 3 == 0 if size_s > 100.0 else self._random.random() < 0.5

    def _terminate(self, name: str, soon_s: float) -> Reply:
        self._terminated.add(name)
        vm = self._world.vms.get((self.run, name))
        if vm is not None and vm.alive:
            self._end(vm)
        return Reply(soon_s)

    def _end(self, vm: SimVm) -> None:
        undead_s = self.faults.strike("undead", self._world.now_s)
        if undead_s is None:
            if not vm.ending:
                self._world.end(vm, "terminated", "terminated")
        elif self._random.random() < 0.5:  # the other half is lost entirely: only another call ends the VM
            vm.ending = True
            self._world.at(self._world.now_s + undead_s, self._world.end, vm, "terminated", "terminated")

    def _list_ours(self, owner: str, soon_s: float) -> Reply:
        world = self._world
        found = [
            Owned(
                kind="vm", id=vm.id, vm=vm.vm, run=vm.labels.get("orch-run", ""), owner=owner,
                location=vm.place.location, lease_until_s=_number(vm.labels.get("orch-lease-until")),
                link=f"sim://{vm.id}",
            )
            for vm in world.vms.values()
            if vm.alive and vm.visible_s <= world.now_s and owner and vm.labels.get("orch-owner") == owner
        ]  # fmt: skip
        return Reply(soon_s, found)

    def _release(self, owned: Owned, soon_s: float) -> Reply:
        vm = next((vm for vm in self._world.vms.values() if vm.id == owned.id), None)
        if vm is not None and (not owned.owner or vm.labels.get("orch-owner") != owned.owner):
            return Reply(
                soon_s, error=InvalidRequestError(f"{owned.id} does not carry the label of '{owned.owner}'")
            )
        if vm is not None and vm.alive:
            self._end(vm)
        return Reply(soon_s)

    def _close(self, soon_s: float) -> Reply:
        self._closed = True
        for vm in self._world.alive(self.run):
            self._end(vm)
        left = [vm.vm for vm in self._world.alive(self.run)]
        return Reply(soon_s, error=TransientError(f"{', '.join(left)} still running") if left else None)


def _number(text: str | None) -> float | None:
    return float(text) if text else None
