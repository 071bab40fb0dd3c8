"""The provider's contract against the simulated and the emulated cloud; `contract.py` holds the checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from contract import CHECKS, CLOSING, Rig, a_vm_above_its_ceiling_is_refused_and_gone, checks_for
from local_fixtures import EU, US, left_of, options, wait_for

from cloud.local import LocalCloud
from cloud.provider import LaunchRequest, Offer, Provider
from cloud.sim import SimCloud, SimPlace, SimWorld, VirtualClock


class SimRig:
    """Virtual time: waiting is advancing the clock."""

    def __init__(self, folder: Path) -> None:
        places = (SimPlace(US), SimPlace(EU, capacity=0))
        self._clock, self._folder = VirtualClock(1_763_000_000.0), folder
        self._world = SimWorld(places, began_s=self._clock.now_s)
        self._world.status_of = lambda vm: {"phase": "training"} if vm.state == "running" else {}
        self._cloud = SimCloud(folder / "run", self._world, self._clock)

    def provider(self) -> Provider:
        return self._cloud

    def neighbour(self) -> Provider:
        return SimCloud(self._folder / "other", self._world, self._clock)

    def request(self, vm: str, labels: Mapping[str, str], location: str = US, **more) -> LaunchRequest:
        offer = Offer(location, "sim-8", "T4:1", True, Decimal("0.2"), "")
        return LaunchRequest(vm, offer, "p", {}, labels=labels, **more)

    def refused(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        return self.request(vm, labels, EU)

    def dear(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        return self.request(vm, labels, max_usd_per_h=Decimal("0.19"))

    def vm(self, slot: str, generation: int = 0) -> str:
        return f"run-{slot}-{generation}"

    def eventually(self, what: Callable[[], object]) -> None:
        for _ in range(100):
            if what():
                return
            self._clock.advance_to(self._clock.now_s + 10.0)
        pytest.fail("not within 1000 s")


class LocalRig:
    """Real processes in namespaces, and the real clock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "run"
        self._cloud = LocalCloud.start(self._folder, options(capacity={EU: 0}))

    def provider(self) -> Provider:
        return LocalCloud(self._folder)

    def neighbour(self) -> Provider:
        return LocalCloud(self._folder.parent / "other")

    def request(self, vm: str, labels: Mapping[str, str], location: str = US) -> LaunchRequest:
        offer = Offer(location, "emulated", "T4:1", True, None, "")
        return LaunchRequest(vm, offer, "local_programs:leave", {}, labels=labels)

    def refused(self, vm: str, labels: Mapping[str, str]) -> LaunchRequest:
        return self.request(vm, labels, EU)

    def dear(self, vm: str, labels: Mapping[str, str]) -> None:
        return None  # no prices of its own

    def vm(self, slot: str, generation: int = 0) -> str:
        return f"run-{slot}-{generation}"

    def eventually(self, what: Callable[[], object]) -> None:
        wait_for(what)

    def close(self) -> None:
        self._cloud.close()


@pytest.mark.parametrize("check", [*CHECKS, CLOSING], ids=lambda c: c.__name__)
def test_the_simulated_cloud(check: Callable[[Rig], None], tmp_path: Path):
    check(SimRig(tmp_path))


def test_the_simulated_cloud_can_do_every_check(tmp_path: Path):
    assert checks_for(SimRig(tmp_path)) == [*CHECKS, CLOSING]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory):
    """One run for all checks; the last one ends it."""
    folder = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        rig = LocalRig(folder)
        yield rig
        rig.close()
    assert left_of(folder / "run") == []


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the emulated cloud is Linux's")
@pytest.mark.parametrize(
    "check",
    [*(c for c in CHECKS if c is not a_vm_above_its_ceiling_is_refused_and_gone), CLOSING],
    ids=lambda c: c.__name__,
)
def test_the_emulated_cloud(check: Callable[[Rig], None], local: LocalRig):
    assert check in checks_for(local)
    check(local)
