"""Terminates VMs in the clouds by owner label, and confirms with two listings that they are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloud.provider import Owned, Provider, ProviderError
from cloud.sky.aws import account as aws
from cloud.targets import TARGETS
from cloud.vendors import AWS, RENTABLE
from orchestrator.controller.actor import make_provider
from orchestrator.errors import UsageError
from orchestrator.home import checked_owner, owners, run_folder, stored_owner
from orchestrator.launch.rented import SKY

_PAUSE_S = 5.0  # between the two confirming listings
_PATIENCE_S = 60.0  # for terminated VMs to vanish from the listings


@dataclass(frozen=True, slots=True)
class Reach:
    """Where an owner's VMs are searched for, and where they are not."""

    looked_at: tuple[str, ...]
    not_looked_at: Mapping[str, str]  # cloud: why

    @property
    def asks_a_cloud(self) -> bool:
        """Whether any cloud is queried itself. SkyPilot's list only contains what this machine launched."""
        return any(cloud in RENTABLE for cloud in self.looked_at)


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of reaping."""

    left: Mapping[str, list[str]] = field(default_factory=dict)  # still there, by run
    owners: tuple[str, ...] = ()  # owners whose VMs were searched for in the clouds
    reach: Reach | None = None  # None: only this machine was searched
    others: Mapping[str, list[str]] = field(default_factory=dict)  # VMs of unknown runs, left alone, by run
    unreadable: Mapping[str, str] = field(
        default_factory=dict
    )  # reason by run; its VMs were terminated anyway


def reach() -> Reach:
    """The reach of this machine with its present credentials."""
    asked = (AWS.name,) if aws.has_credentials() else ()
    why = {c: "no credentials here" if c == AWS.name else "orch cannot query it directly" for c in RENTABLE}
    return Reach(("SkyPilot's list on this machine", *asked), {c: why[c] for c in RENTABLE if c not in asked})


def owners_to_ask_for(home: Path, launched: Iterable[str], on: str, owner: str) -> dict[str, bool]:
    """Owners to search for, with whether all of their VMs may be taken down; {}: nothing was ever rented.

    `launched`: owners of the runs of this home, which may differ from the current one (`ORCH_OWNER`). VMs of
    these, and of all owners ever used in this home (a run's folder may be gone), are taken down for runs of
    this home only. Raises UsageError if no owner is known.
    """
    chosen = checked_owner(owner, "--owner") if owner else ""
    if on and not TARGETS[on].rents:
        return {}
    others = set(launched) | owners(home)
    if not (on or others):
        return {}
    chosen = chosen or stored_owner(home)
    if not (chosen or others):
        raise UsageError(
            f"{home}: nothing was rented from here yet, so the owner to search for is unknown; add `--owner NAME`, "
            "the VMs' label orch-owner, which `orch launch --on sky` printed"
        )
    return {**dict.fromkeys(sorted(others), False), **({chosen: True} if chosen else {})}


def reap_clouds(
    home: Path, owner: str, known: Collection[str], alive: Collection[str], everything: bool
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Terminate VMs with the label orch-owner = `owner`.

    Returns what is still there, by run ("no run": no label), and what was left alone because its run is
    unknown here. Without `everything`, VMs of `alive` runs are kept, and so are those of unknown runs (of
    another machine or home, or with a removed folder). Needs only the clouds' credentials.
    """
    provider = make_provider(SKY, str(run_folder(home, "reap")))
    try:
        failed = _end(provider, owner, known, alive, everything)
        left = _confirm_gone(provider, owner, known, alive, everything)
        unknown = (
            [] if everything else [o for o in provider.list_ours(owner) if o.run not in {*known, *alive}]
        )
        provider.close()  # stops the API server if it was started for this
    except (ProviderError, ImportError) as error:
        return {"sky": [f"what is left of owner {owner} is not known: {error}"]}, {}
    return _by_run(left, lambda each: failed.get(each.id, "")), _by_run(unknown, lambda _: "")


def _by_run(owned: Iterable[Owned], why: Callable[[Owned], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in owned:
        reason = f"({why(each)})" if why(each) else ""
        words = (each.kind, each.id, f"in {each.location}", each.link, reason)
        found.setdefault(each.run or "no run", []).append(" ".join(word for word in words if word))
    return found


def to_end(
    owned: Iterable[Owned], known: Collection[str], alive: Collection[str], everything: bool
) -> list[Owned]:
    """What to terminate, clusters first: a cluster's teardown removes its VM and SkyPilot's record of it."""
    chosen = [o for o in owned if everything or (o.run in known and o.run not in alive)]
    return sorted(chosen, key=lambda o: o.kind != "cluster")


def _end(
    provider: Provider, owner: str, known: Collection[str], alive: Collection[str], everything: bool
) -> dict[str, str]:
    """Request termination of each. Returns the errors by id."""
    failed: dict[str, str] = {}
    for _ in range(2):  # VMs left after the clusters were not launched by SkyPilot, or not by this machine
        for each in to_end(provider.list_ours(owner), known, alive, everything):
            try:
                provider.release(each)
                failed.pop(each.id, None)
            except ProviderError as error:
                failed[each.id] = str(error)
    return failed


def _confirm_gone(
    provider: Provider, owner: str, known: Collection[str], alive: Collection[str], everything: bool
) -> list[Owned]:
    """What is still listed. Empty only after two empty listings some seconds apart."""
    deadline = time.monotonic() + _PATIENCE_S
    empty = 0
    while True:
        left = to_end(provider.list_ours(owner), known, alive, everything)
        empty = 0 if left else empty + 1
        if empty == 2 or (left and time.monotonic() > deadline):
            return left
        time.sleep(_PAUSE_S)
