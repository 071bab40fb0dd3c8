"""The provider contract as checks. A rig tells how to make one provider's requests and how its time passes.

`test_contract.py` runs them for the simulated and the emulated cloud; for another provider, implement `Rig`. Each check
uses its own VM names, so all of them may share one rig (one run), except `CLOSING`, which ends the run and comes last.
`checks_for(rig)` omits checks that the rig does not support.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from cloud.provider import (
    EndedError,
    InvalidRequestError,
    LaunchRequest,
    NoCapacityError,
    Observed,
    Owned,
    Provider,
    ProviderError,
)

OWNER, STRANGER = "tester-00c0ffee", "somebody-else"


class Rig(Protocol):
    """One provider under test: an open run, and its clock."""

    def provider(self) -> Provider:
        """A client of the run; each call may return another one."""
        ...

    def neighbour(self) -> Provider | None:
        """A client of another run of the same account; None: not supported."""
        ...

    def request(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        """A request that succeeds, for a program that stays and writes status.json."""
        ...

    def refused(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest | None:
        """A request for which the place has no capacity; None: not supported."""
        ...

    def dear(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest | None:
        """A request whose ceiling is below the price; None: a provider without prices."""
        ...

    def vm(self, slot: str, generation: int = 0) -> str:
        """A VM's name: "<run id>-<slot>-<generation>"."""
        ...

    def eventually(self, what: Callable[[], object]) -> None:
        """Return when `what()` is true; fail when it does not become true in reasonable time."""
        ...


def _labels(rig: Rig, owner: str = OWNER) -> dict[str, str]:
    run = rig.vm("x").rsplit("-", 2)[0]
    return {"orch-run": run, "orch-slot": "x", "orch-owner": owner, "orch-lease-until": "1763000000"}


def _rent(rig: Rig, slot: str, owner: str = OWNER) -> str:
    vm = rig.vm(slot)
    rig.provider().request(rig.request(vm, _labels(rig, owner)))
    return vm


def _seen(rig: Rig, vm: str) -> list[Observed]:
    return [o for o in rig.provider().observe() if o.vm == vm]


def _lives(rig: Rig, vm: str) -> bool:
    return any(o.state in ("pending", "running") for o in _seen(rig, vm))


def _runs(rig: Rig, vm: str) -> bool:
    return any(o.state == "running" for o in _seen(rig, vm))


def _ours(rig: Rig, owner: str = OWNER) -> dict[str, Owned]:
    return {o.vm: o for o in rig.provider().list_ours(owner) if o.kind in ("vm", "cluster")}


def a_request_becomes_a_running_vm(rig: Rig) -> None:
    vm = _rent(rig, "life")
    rig.eventually(lambda: _runs(rig, vm))
    (seen,) = _seen(rig, vm)
    assert seen.location == rig.request(vm, {}).offer.location
    assert seen.ready_at_s is None or seen.ready_at_s >= seen.requested_at_s
    assert seen.ended_at_s is None
    rig.eventually(lambda: _seen(rig, vm)[0].status)
    rig.provider().terminate(vm)
    rig.eventually(lambda: not _lives(rig, vm))


def the_same_request_twice_is_one_vm(rig: Rig) -> None:
    vm = _rent(rig, "twice")
    rig.provider().request(rig.request(vm, _labels(rig)))
    rig.eventually(lambda: _runs(rig, vm))
    assert len(_seen(rig, vm)) == 1
    assert sum(o.vm == vm and o.kind == "vm" for o in rig.provider().list_ours(OWNER)) <= 1
    rig.provider().terminate(vm)


def terminate_is_idempotent(rig: Rig) -> None:
    vm = _rent(rig, "end")
    rig.provider().terminate(rig.vm("nobody"))
    rig.provider().terminate(vm)
    rig.provider().terminate(vm)
    rig.eventually(lambda: not _lives(rig, vm))
    rig.provider().terminate(vm)
    assert not _lives(rig, vm)


def a_name_is_never_used_again(rig: Rig) -> None:
    vm = _rent(rig, "name")
    rig.provider().terminate(vm)
    rig.eventually(lambda: not _lives(rig, vm))
    rig.provider().request(rig.request(vm, _labels(rig)))
    assert not _lives(rig, vm)
    assert vm not in _ours(rig)
    rig.provider().request(rig.request(rig.vm("name", 1), _labels(rig)))
    rig.eventually(lambda: _runs(rig, rig.vm("name", 1)))
    rig.provider().terminate(rig.vm("name", 1))


def impossible_requests_are_invalid(rig: Rig) -> None:
    good = rig.request(rig.vm("wrong"), _labels(rig))
    for wrong in (
        replace(good, vm="../x"),
        replace(good, offer=replace(good.offer, location="nowhere/no-region/no-zone")),
    ):
        with pytest.raises(InvalidRequestError):
            rig.provider().request(wrong)
        assert not _lives(rig, wrong.vm)


def no_capacity_leaves_nothing(rig: Rig) -> None:
    vm = rig.vm("full")
    request = rig.refused(vm, _labels(rig))
    assert request is not None
    with pytest.raises(NoCapacityError):
        rig.provider().request(request)
    assert not _lives(rig, vm)
    assert vm not in _ours(rig)


def a_vm_above_its_ceiling_is_refused_and_gone(rig: Rig) -> None:
    vm = rig.vm("dear")
    request = rig.dear(vm, _labels(rig))
    assert request is not None
    with pytest.raises(NoCapacityError):
        rig.provider().request(request)
    rig.eventually(lambda: not _lives(rig, vm) and vm not in _ours(rig))


def collect_returns_the_vms_files(rig: Rig) -> None:
    vm = _rent(rig, "files")
    rig.eventually(lambda: _runs(rig, vm) and _seen(rig, vm)[0].status)
    folder = Path(rig.provider().collect(vm))
    assert folder.is_dir()
    assert (folder / "status.json").is_file()
    rig.provider().terminate(vm)
    rig.eventually(lambda: not _lives(rig, vm))


def only_labelled_resources_are_listed_and_released(rig: Rig) -> None:
    mine, theirs = _rent(rig, "mine"), _rent(rig, "theirs", STRANGER)
    rig.eventually(lambda: mine in _ours(rig) and theirs in _ours(rig, STRANGER))
    assert theirs not in _ours(rig)
    assert rig.provider().list_ours("") == []
    owned = _ours(rig)[mine]
    assert (owned.owner, owned.run) == (OWNER, _labels(rig)["orch-run"])
    assert owned.lease_until_s == 1763000000
    with pytest.raises(InvalidRequestError):
        rig.provider().release(replace(_ours(rig, STRANGER)[theirs], owner=OWNER))
    assert _lives(rig, theirs)
    rig.provider().release(owned)
    rig.eventually(lambda: mine not in _ours(rig) and not _lives(rig, mine))
    rig.provider().release(owned)
    assert _lives(rig, theirs)
    rig.provider().terminate(theirs)


def other_runs_of_ours_are_listed_and_released(rig: Rig) -> None:
    neighbour = rig.neighbour()
    assert neighbour is not None
    vm = _rent(rig, "ours")
    rig.eventually(lambda: vm in {o.vm for o in neighbour.list_ours(OWNER)})
    owned = next(o for o in neighbour.list_ours(OWNER) if o.vm == vm)
    assert vm not in {o.vm for o in neighbour.observe()}
    neighbour.release(owned)
    rig.eventually(lambda: not _lives(rig, vm))


def offers_describe_what_a_place_rents(rig: Rig) -> None:
    wished = rig.request(rig.vm("offer"), {}).offer
    offers = rig.provider().offers(wished.location, wished.accelerator, wished.use_spot)
    assert offers
    assert {o.location for o in offers} == {wished.location}
    assert all(o.price_source for o in offers)
    prices = [o.usd_per_h for o in offers if o.usd_per_h is not None]
    assert prices == sorted(prices)


def closing_ends_everything(rig: Rig) -> None:
    """End the rig's run; this is the last check."""
    vms = [_rent(rig, slot) for slot in ("close-a", "close-b")]
    rig.provider().close()
    rig.provider().close()
    assert not any(_is_there(rig, vm) for vm in vms)
    rig.provider().terminate(vms[0])
    assert not {*vms} & {*_ours(rig)}
    try:
        rig.provider().request(rig.request(rig.vm("late"), _labels(rig)))
    except EndedError:
        pass
    else:
        pytest.fail("a closed run rented a VM")


def _is_there(rig: Rig, vm: str) -> bool:
    try:
        return _lives(rig, vm)
    except ProviderError:  # a cloud that has ended may raise EndedError instead
        return False


CHECKS: tuple[Callable[[Rig], None], ...] = (
    a_request_becomes_a_running_vm,
    the_same_request_twice_is_one_vm,
    terminate_is_idempotent,
    a_name_is_never_used_again,
    impossible_requests_are_invalid,
    no_capacity_leaves_nothing,
    a_vm_above_its_ceiling_is_refused_and_gone,
    collect_returns_the_vms_files,
    only_labelled_resources_are_listed_and_released,
    other_runs_of_ours_are_listed_and_released,
    offers_describe_what_a_place_rents,
)
CLOSING = closing_ends_everything


def checks_for(rig: Rig) -> Sequence[Callable[[Rig], None]]:
    """The checks that this rig supports, the closing one last."""
    left_out: set[Callable[[Rig], None]] = set()
    if rig.refused("x", {}) is None:
        left_out.add(no_capacity_leaves_nothing)
    if rig.dear("x", {}) is None:
        left_out.add(a_vm_above_its_ceiling_is_refused_and_gone)
    if rig.neighbour() is None:
        left_out.add(other_runs_of_ours_are_listed_and_released)
    return [check for check in (*CHECKS, CLOSING) if check not in left_out]
