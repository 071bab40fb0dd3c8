"""The provider contract: how orch rents, observes and ends VMs on one kind of target.

A provider is a class with the methods of `Provider`, constructed with the run's folder. `cloud.local` and `cloud.sky`
implement it, and `cloud.sim` for simulations, whose client is given its world and clock as well. To add a target,
implement the class, add a `Target` record to `cloud.targets`, and run the contract tests against it: a rig in
`tests/cloud/test_contract.py` is all they need.

Every implementation must keep these rules:

- *Stateless clients.* All state is in the run's folder or at the provider, none in the object. Calls may come from
  several threads and processes at once, and from a new process after a crash.
- *Idempotent by name.* `request` with a name that exists does nothing; if that launch is still in progress, it waits
  for it. `terminate` does nothing for a name that is unknown or has ended. Names are never reused: a replacement has
  the next generation in its name.
- *Eventually consistent.* `observe` may lag behind `request` and `terminate`: it may show an older state of a VM, or
  not show the VM at all. The caller repeatedly compares the desired state with the observed one, never depends on
  having seen a particular change, and concludes that a VM is gone only after several reads without it.
- *One VM per request.* `request` returns when the provider has accepted the VM, which may take minutes. After any error
  other than AmbiguousError nothing is left of it. A VM that costs more than `max_usd_per_h` is ended and refused with
  NoCapacityError.
- *Own resources only.* `list_ours` returns what carries the owner's label, from this run and from others; `release`
  never ends anything without that label.
- *A closed set of errors.* Every failure is raised as a subclass of `ProviderError`. The class tells the caller what to
  do: try elsewhere, try later, give up, or observe before trying again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol

from cloud.networks.tuning import NetworkTuning

__all__ = [
    "AmbiguousError",
    "CredentialsError",
    "EndedError",
    "InvalidRequestError",
    "LaunchRequest",
    "LostError",
    "NoCapacityError",
    "Observed",
    "Offer",
    "Owned",
    "OwnedKind",
    "Provider",
    "ProviderError",
    "QuotaError",
    "TransientError",
    "VmState",
    "is_monitor",
]


# ProviderError
# ├── NoCapacityError        try the slot's next place
# ├── QuotaError             try another provider and report it to the user
# ├── CredentialsError       stop and report it to the user
# ├── InvalidRequestError    stop: it can never succeed
# │   └── LostError          the provider cannot continue this run and ends all of its VMs
# │       └── EndedError     everything of this run has ended; there is nothing left to observe or end
# ├── TransientError         try again later
# └── AmbiguousError         the call may or may not have taken effect: observe first
class ProviderError(Exception):
    """A provider call failed."""


class NoCapacityError(ProviderError):
    """The place has no such VM to rent now, or only above the price ceiling."""


class QuotaError(ProviderError):
    """The account's quota does not allow more of these VMs here."""


class CredentialsError(ProviderError):
    """The provider rejects the credentials, or there are none."""


class InvalidRequestError(ProviderError):
    """The request can never succeed as it is (or this machine cannot run the emulation)."""


class LostError(InvalidRequestError):
    """The provider cannot continue this run; it ends everything that belongs to it."""


class EndedError(LostError):
    """Everything of this run has ended, and the provider starts nothing more for it."""


class TransientError(ProviderError):
    """The provider failed, and the call had no effect."""


class AmbiguousError(ProviderError):
    """No answer arrived, so the call may have taken effect. Observe before repeating it."""


_MONITOR = re.compile(r"monitor(-[0-9]+)?")


def is_monitor(vm: str) -> bool:
    """Whether a VM's name is that of a monitor: "monitor", its replacement "monitor-1", ... Monitors are not billed."""
    return _MONITOR.fullmatch(vm) is not None


VmState = Literal["pending", "running", "preempted", "failed", "terminated"]


@dataclass(frozen=True)
class Offer:
    """One kind of VM in one place."""

    location: str  # "gcp/us-central1/us-central1-a"
    instance: str  # "n1-standard-8"
    accelerator: str  # "T4:1"
    use_spot: bool
    usd_per_h: Decimal | None  # None: unknown
    price_source: str  # book and row, or why it is unknown


@dataclass(frozen=True)
class LaunchRequest:
    """One VM to rent and the program to run on it."""

    vm: str  # "<run id>-<slot>-<generation>"
    offer: Offer
    program: str  # "experiments.peer.main:main", called with the config's path
    # Both may hold secrets and are therefore not in the repr. `config` is written to the VM's folder as config.json
    # (0600) before the program starts; `files` are further files of that folder (keys).
    config: Mapping[str, Any] = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    # Tags that the VM carries from its creation: orch-run, orch-slot, orch-owner, orch-lease-until (unix seconds).
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()  # TCP ports at which the other peers reach it
    max_usd_per_h: Decimal | None = None  # the plan's price ceiling; None: any price
    # The VM ends itself after this time, even if nothing else can end it; None: no limit.
    max_life_s: float | None = None
    setup: str = ""  # the user's shell commands, run before the program
    file_mounts: Mapping[str, str] = field(default_factory=dict)  # path on the VM: local path or bucket
    # Folders of this machine that are copied into the VM's folder before the program starts, by their name there.
    folders: Mapping[str, str] = field(default_factory=dict)
    # Lines for pip, installed after the program's own packages, which they cannot replace. Paths start at the VM's folder.
    # Local VMs share this machine's environment, where nothing is installed.
    requirements: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()  # buckets of the VM's own cloud that its role may read
    written: tuple[str, ...] = ()  # places "bucket/prefix" below which its role may read, write and delete
    disk_gb: int = 100
    image_id: str = ""
    # Of the VM's kernel; the emulated cloud takes it from its options.
    network_tuning: NetworkTuning = "default"


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of one VM as the provider reports it now."""

    vm: str
    state: VmState
    location: str
    address: str | None  # IP at which the peers reach it
    requested_at_s: float  # unix time
    ready_at_s: float | None  # when it had booted and its program had started
    ended_at_s: float | None
    cause: str  # one sentence: why it is in this state; "" if there is nothing to explain
    notice_at_s: float | None  # when the provider will take the VM back, if it has announced that
    # The VM program's latest status.json (phase, maddr, error ...); {} if there is none yet.
    status: Mapping[str, Any]
    pid: int | None = None  # local providers: the program's pid as seen from the host
    # As read back after creation; "" and None if the provider does not report it.
    instance: str = ""
    usd_per_h: Decimal | None = None
    price_source: str = ""
    link: str = ""  # page of the VM in the provider's console
    internal_address: str = ""  # IP inside the cloud's network, as reported by the cloud; "": none or unknown
    clock_skew_s: float | None = None  # how far its clock is ahead of this machine's; None: not measured


OwnedKind = Literal["vm", "cluster", "volume", "address"]


@dataclass(frozen=True)
class Owned:
    """A resource at a provider that carries the owner's label (orch-owner)."""

    kind: OwnedKind
    id: str  # the provider's own identifier: "i-0abc", a cluster's name
    vm: str  # the VM it belongs to: "<run id>-<slot>-<generation>"; "" if unknown
    run: str  # label orch-run
    owner: str  # label orch-owner
    location: str
    lease_until_s: float | None  # label orch-lease-until
    link: str = ""


class Provider(Protocol):
    """The calls of a provider.

    Each may block for seconds (`request` for minutes) and may raise any `ProviderError`; the errors listed with a method
    are those that callers of it should expect.
    """

    name: str

    def offers(self, location: str, accelerator: str, use_spot: bool) -> Sequence[Offer]:
        """Return what could be rented at a location, cheapest first and unknown prices last.

        `location` is `cloud/region[/zone]`, `accelerator` is `T4:1`, or `CPU:8` for none. Every offer names the source
        of its price. Empty if the place has nothing suitable. Must not start or rent anything.
        """
        ...

    def request(self, request: LaunchRequest) -> None:
        """Rent the VM `request.vm` and start its program.

        Returns when the provider has accepted the VM; its program may become ready later, which `observe` shows. A name
        that exists or has existed rents nothing. If its launch is in progress, even one that another process began,
        wait for it.

        The VM must carry `labels` from its creation, so that `list_ours` finds it whatever happens to the caller. If it
        turns out to cost more than `max_usd_per_h`, or an error occurs, end it again before raising; raise
        AmbiguousError if that cannot be confirmed.

        Raises NoCapacityError, QuotaError, CredentialsError, InvalidRequestError (invalid name or unknown place among
        others), TransientError, AmbiguousError; EndedError after `close`.
        """
        ...

    def observe(self) -> Sequence[Observed]:
        """Return the VMs of this run, including ended ones for as long as the provider remembers them.

        An entry may be outdated, and a new VM may be missing (see the module docstring). Called every few seconds.
        Raises TransientError if the provider does not answer, LostError and EndedError as their classes say.
        """
        ...

    def terminate(self, vm: str) -> None:
        """End a VM; do nothing if the name is unknown or the VM has ended.

        Its program should get a few seconds to exit (SIGTERM) first. May return before the VM is gone, which `observe`
        shows. A launch of this name that is still in progress must not leave a VM behind.

        Raises TransientError, AmbiguousError; it is then safe to call it again.
        """
        ...

    def collect(self, vm: str) -> str:
        """Fetch what the VM's program wrote (step log, peer log, status.json) and return its folder on this machine.

        Best effort: the folder of an ended VM holds what could be fetched before its end, and may be missing.
        """
        ...

    def list_ours(self, owner: str) -> Sequence[Owned]:
        """Return every living resource with the label orch-owner = `owner`, from all runs.

        Needs the provider's credentials but no run. An empty `owner` matches nothing. Raises CredentialsError,
        TransientError.
        """
        ...

    def release(self, owned: Owned) -> None:
        """End one resource that `list_ours` returned; do nothing if it is gone.

        Check its label again first: raises InvalidRequestError unless it carries orch-owner = `owned.owner`. Raises
        TransientError, AmbiguousError.
        """
        ...

    def close(self) -> None:
        """End everything of this run: its VMs first, then whatever the provider started for it.

        Idempotent. `request` raises EndedError from here on. Raises TransientError naming what is left; call it again.
        """
        ...
