"""What a provider of VMs must do: the contract that `cloud.sim`, `cloud.local` and `cloud.sky` keep.

Semantics every implementation keeps, and the contract tests (`tests/cloud/test_contract.py`) check:
- *Idempotent by name.* `request` with a name that exists does nothing (one whose launch is still under way is
  waited for); `terminate` of a name that does not exist, or is already gone, does nothing. Names are never
  reused: a replacement has the next generation in its name.
- *Eventually consistent.* `observe` may lag behind `request` and `terminate`, and may show a VM in an older state
  or not at all; the caller compares wishes with observations again and again, never relies on having seen a
  change happen, and believes absence only after repeated reads.
- *One VM a request.* `request` returns when the provider took it, which may take minutes; after any error but
  AmbiguousError nothing is left of it. A VM dearer than `max_usd_per_h` is ended again and refused (NoCapacityError).
- *Ours only.* `list_ours` shows what carries the owner's label, of this run and of others; `release` ends nothing
  that does not.
- *A closed set of errors.* Whatever goes wrong is one of `ProviderError`'s subclasses; each says
  what the caller decides (try elsewhere, try later, give up, look before trying again).
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
# ├── QuotaError             try another provider, tell the user
# ├── CredentialsError       stop, tell the user
# ├── InvalidRequestError    stop, it will never work
# │   └── LostError          the provider cannot go on with this run, and ends what it has of it
# │       └── EndedError     all of this run has ended: nothing of it is left to be asked or ended
# ├── TransientError         try again later
# └── AmbiguousError         it may or may not have happened: observe before anything else
class ProviderError(Exception):
    """A provider call that did not do what was asked."""


class NoCapacityError(ProviderError):
    """The place has no such VM to rent now."""


class QuotaError(ProviderError):
    """The account may not rent more of this here."""


class CredentialsError(ProviderError):
    """The provider does not accept who we are."""


class InvalidRequestError(ProviderError):
    """The request can never succeed as it stands (or this host cannot run the emulation)."""


class LostError(InvalidRequestError):
    """The provider itself cannot go on with this run: it ends all that it has of it."""


class EndedError(LostError):
    """Whatever the provider had for this run is gone, and it will start no more for it."""


class TransientError(ProviderError):
    """The provider failed; nothing happened."""


class AmbiguousError(ProviderError):
    """No answer came: it may have happened. Look before asking again."""


_MONITOR = re.compile(r"monitor(-[0-9]+)?")


def is_monitor(vm: str) -> bool:
    """Whether a VM's name is a monitor's ("monitor", after its death "monitor-1", ...), which is not billed."""
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
    # Both hold secrets and are in no repr. `config` is written as config.json (0600) into the VM's folder before
    # the program starts, `files` are further files of that folder (keys).
    config: Mapping[str, Any] = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    # Tags of the VM from its first moment: orch-run, orch-slot, orch-owner, orch-lease-until (unix seconds).
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()  # TCP ports the other peers reach it at
    max_usd_per_h: Decimal | None = None  # the plan's ceiling; None: any price
    max_life_s: float | None = (
        None  # the VM ends itself after this, whoever is left; None: no limit of its own
    )
    setup: str = ""  # shell commands of the user's, before the program
    file_mounts: Mapping[str, str] = field(default_factory=dict)  # path on the VM: local path or bucket
    buckets: tuple[str, ...] = ()  # of the VM's own cloud, which it reads by its role
    disk_gb: int = 100
    image_id: str = ""
    network_tuning: NetworkTuning = "default"  # of the VM's kernel; the emulated cloud has it in its options


@dataclass(frozen=True)
class Observed:
    """What the provider says of one VM, now."""

    vm: str
    state: VmState
    location: str
    address: str | None  # IP the peers reach it at
    requested_at_s: float  # unix time
    ready_at_s: float | None  # booted, program started
    ended_at_s: float | None
    cause: str  # why it is in this state, one sentence; "" if nothing to say
    notice_at_s: float | None  # the provider announced it will take the VM back at this time
    status: Mapping[
        str, Any
    ]  # the VM program's own last status.json (phase, maddr, error ...); {} if none yet
    pid: int | None = None  # local providers: the program's pid as seen from the host
    # As read back after creation; "" and None where the provider does not say.
    instance: str = ""
    usd_per_h: Decimal | None = None
    price_source: str = ""
    link: str = ""  # where a person looks at it in the provider's console
    internal_address: str = ""  # IP inside the cloud's network, by the cloud's word; "": none, or not known
    clock_skew_s: float | None = None  # what its clock is ahead of this machine's; None: not measured


OwnedKind = Literal["vm", "cluster", "volume", "address"]


@dataclass(frozen=True)
class Owned:
    """Something that exists at a provider and carries our owner's label (orch-owner)."""

    kind: OwnedKind
    id: str  # the provider's own: "i-0abc", a cluster's name
    vm: str  # the VM it belongs to: "<run id>-<slot>-<generation>"; "" when it does not say
    run: str  # label orch-run
    owner: str  # label orch-owner
    location: str
    lease_until_s: float | None  # label orch-lease-until
    link: str = ""


class Provider(Protocol):
    """The calls. All may block for seconds and raise `ProviderError`; none keeps state in this process."""

    name: str

    def offers(self, location: str, accelerator: str, use_spot: bool) -> Sequence[Offer]:
        """What could be rented there, the cheapest first, with its price; nothing is contacted that costs."""
        ...

    def request(self, request: LaunchRequest) -> None: ...

    def observe(self) -> Sequence[Observed]:
        """All VMs of this run that the provider knows of, dead ones included while it remembers them."""
        ...

    def terminate(self, vm: str) -> None: ...

    def collect(self, vm: str) -> str:
        """Folder on this machine with what the VM's program wrote (step log, peer log)."""
        ...

    def list_ours(self, owner: str) -> Sequence[Owned]:
        """All that carries the label orch-owner = `owner`, of whichever run. Needs the credentials only."""
        ...

    def release(self, owned: Owned) -> None:
        """End one thing that `list_ours` showed; gone already: nothing. InvalidRequestError without our label."""
        ...

    def close(self) -> None:
        """End everything of this run: VMs first, then whatever the provider started for it."""
        ...
