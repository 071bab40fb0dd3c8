"""What the clouds have with our owner's label, against what this home's runs know: ended, and looked at twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloud.provider import Owned, Provider, ProviderError
from cloud.sky.aws import account as aws
from cloud.targets import TARGETS
from cloud.vendors import AWS, RENTED
from orchestrator.controller.actor import make_provider
from orchestrator.errors import UsageError
from orchestrator.home import checked_owner, kept_owner, owners, run_folder
from orchestrator.launch.rented import SKY

_PAUSE_S = 5.0  # between the two listings that prove
_PATIENCE_S = 60.0  # for what was ended to vanish from the listings


@dataclass(frozen=True, slots=True)
class Reach:
    """Where an owner's VMs are looked for, and where they are not."""

    looked_at: tuple[str, ...]
    not_looked_at: Mapping[str, str]  # cloud: why

    @property
    def asks_a_cloud(self) -> bool:
        """Whether any cloud itself is asked. SkyPilot's list has only what this machine launched."""
        return any(cloud in RENTED for cloud in self.looked_at)


@dataclass(frozen=True, slots=True)
class Reaped:
    """What reaping came to."""

    left: Mapping[str, list[str]] = field(default_factory=dict)  # still there, by run
    owners: tuple[str, ...] = ()  # whose VMs were looked for in the clouds
    reach: Reach | None = None  # None: nowhere but on this machine
    others: Mapping[str, list[str]] = field(default_factory=dict)  # of runs not known here, left alone
    unreadable: Mapping[str, str] = field(default_factory=dict)  # run: why; what runs of it was ended


def reach() -> Reach:
    """Of this machine, now."""
    asked = (AWS.name,) if aws.has_credentials() else ()
    why = {c: "no credentials here" if c == AWS.name else "orch cannot ask it itself" for c in RENTED}
    return Reach(("SkyPilot's list on this machine", *asked), {c: why[c] for c in RENTED if c not in asked})


def owners_to_ask_for(home: Path, launched: Iterable[str], on: str, owner: str) -> dict[str, bool]:
    """Whose VMs are looked for, and whether all of theirs may be taken down; {}: nothing was ever rented from here.

    `launched`: the owners that runs of this home were launched by, perhaps other ones than now (`ORCH_OWNER`, then):
    looked for too, but only for those runs; so are all others under whose names anything was rented from here, since
    a run's folder may be gone. Raises UsageError when nobody knows whose.
    """
    chosen = checked_owner(owner, "--owner") if owner else ""
    if on and not TARGETS[on].rents:
        return {}
    others = set(launched) | owners(home)
    if not (on or others):
        return {}
    chosen = chosen or kept_owner(home)
    if not (chosen or others):
        raise UsageError(
            f"{home}: nothing was rented from here yet, so whose VMs to look for is not known; add `--owner NAME`, "
            "their label orch-owner, which `orch launch --on sky` printed"
        )
    return {**dict.fromkeys(sorted(others), False), **({chosen: True} if chosen else {})}


def reap_clouds(
    home: Path, owner: str, known: Collection[str], alive: Collection[str], everything: bool
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """End what carries the label orch-owner = `owner`; returns what is still there, by run ("no run": none named),
    and what was left alone since this home does not know its run.

    Runs that are `alive` keep theirs unless `everything`; without `everything`, runs that this home does not know
    (another machine's, another home's, or one whose folder was removed) keep theirs too. Needs the clouds'
    credentials only.
    """
    provider = make_provider(SKY, str(run_folder(home, "reap")))
    try:
        failed = _end(provider, owner, known, alive, everything)
        left = _look_twice(provider, owner, known, alive, everything)
        unknown = (
            [] if everything else [o for o in provider.list_ours(owner) if o.run not in {*known, *alive}]
        )
        provider.close()  # of the API server, when only we needed it
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
    """Which of them are to be ended, clusters first: with a cluster its VM goes, and SkyPilot's memory of it."""
    chosen = [o for o in owned if everything or (o.run in known and o.run not in alive)]
    return sorted(chosen, key=lambda o: o.kind != "cluster")


def _end(
    provider: Provider, owner: str, known: Collection[str], alive: Collection[str], everything: bool
) -> dict[str, str]:
    """Ask for the end of each; returns why it failed, by id."""
    failed: dict[str, str] = {}
    for _ in range(2):  # with the clusters gone, what is left was not SkyPilot's, or not this machine's
        for each in to_end(provider.list_ours(owner), known, alive, everything):
            try:
                provider.release(each)
                failed.pop(each.id, None)
            except ProviderError as error:
                failed[each.id] = str(error)
    return failed


def _look_twice(
    provider: Provider, owner: str, known: Collection[str], alive: Collection[str], everything: bool
) -> list[Owned]:
    """What is still listed; nothing only when two listings some seconds apart have nothing."""
    deadline = time.monotonic() + _PATIENCE_S
    empty = 0
    while True:
        left = to_end(provider.list_ours(owner), known, alive, everything)
        empty = 0 if left else empty + 1
        if empty == 2 or (left and time.monotonic() > deadline):
            return left
        time.sleep(_PAUSE_S)
