"""The controller's orders: the allowlist over time, and versions that no restart or clock change lowers."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from decimal import Decimal

import pytest

from experiments.parse.load import load
from experiments.wire.orders import (
    MAX_PEERS,
    Orders,
    OrdersError,
    orders_expiration_s,
    record_key_digest,
    verify,
)
from orchestrator.controller.roster_file import ORDERS_FILE, RosterFile
from orchestrator.core.state import Place, Policy, RunSpec, RunState, Slot, SlotSpec, SlotState
from orchestrator.errors import UsageError
from orchestrator.launch.keys import forget_keys, run_key
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.preflight import preflight

PLACE = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("0.18"), "book")
SPEC = RunSpec("r", (SlotSpec("a", (PLACE,), Policy()), SlotSpec("b", (PLACE,), Policy())), lease_s=600.0)


@pytest.fixture(autouse=True)
def quick_keys(monkeypatch):
    ids = itertools.count()
    monkeypatch.setattr(
        "orchestrator.launch.keys.generate_identity",
        lambda: (b"identity", record_key_digest(f"id {next(ids)}")),
    )
    monkeypatch.setattr("orchestrator.launch.keys.generate_record_key", lambda: (b"record", "ssh-rsa A"))


def state_of(a: Slot, b: Slot, **changes: object) -> RunState:
    return replace(RunState(SPEC, (a, b)), **changes)  # type: ignore[arg-type]


WAITS = Slot("b")
ALIVE = Slot("a", SlotState.PROVISIONING, vm="r-a-0")


class Controller:
    """A process of the controller's, restarted at will."""

    def __init__(self, folder) -> None:
        self.folder, self.file = folder, RosterFile(folder)

    def orders(self, state: RunState, now_s: float) -> Orders:
        vms = [(vm, s.name, s.generation) for s in state.slots for vm in (s.vm, s.ending) if vm]
        self.file.write(state, vms, now_s)
        blob = (self.folder / "monitor" / ORDERS_FILE).read_bytes()
        return verify(blob, run_key(self.folder)[1], "r", -1)

    def restart(self) -> None:
        self.file = RosterFile(self.folder)


def test_a_vm_is_allowed_from_its_intent_until_it_is_gone(tmp_path):
    controller = Controller(tmp_path)
    steps = [
        (state_of(Slot("a"), Slot("b", SlotState.FAILED)), ["r-a-0"]),  # about to be requested
        (state_of(ALIVE, WAITS), ["r-a-0", "r-b-0"]),
        (state_of(ALIVE, Slot("b", SlotState.TRAINING, vm="r-b-0")), ["r-a-0", "r-b-0"]),
        (state_of(ALIVE, Slot("b", generation=1, ending="r-b-0")), ["r-a-0", "r-b-0"]),
        (state_of(ALIVE, Slot("b", generation=1)), ["r-a-0", "r-b-1"]),
        (state_of(ALIVE, Slot("b", SlotState.BOOTING, 1, vm="r-b-1")), ["r-a-0", "r-b-1"]),
        (state_of(ALIVE, Slot("b", SlotState.DONE, 1)), ["r-a-0"]),
    ]
    given = []
    for second, (state, vms) in enumerate(steps):
        given.append(controller.orders(state, 1000.0 + second))
        assert [p.vm for p in given[-1].peers] == ["monitor", *vms]
    assert [o.issued_s for o in given] == [1000.0, 1001.0, 1001.0, 1001.0, 1004.0, 1004.0, 1006.0]
    assert all(o.lease_until_s == o.issued_s + 600.0 for o in given)
    assert len({o.version for o in given}) == 4


def test_the_roster_names_the_first_peer_then_the_peers_to_join(tmp_path):
    def roster(state: RunState) -> tuple[str, list[str]]:
        RosterFile(tmp_path).write(state, [], 1000.0)
        said = json.loads((tmp_path / "monitor" / "roster.json").read_text())
        return said["seed"], said["join"]

    first = Slot("a", SlotState.JOINING, vm="r-a-0", phase="waiting")
    assert roster(state_of(first, WAITS)) == ("", [])
    assert roster(state_of(first, WAITS, seed="r-a-0")) == ("r-a-0", [])
    up = replace(first, phase="dht", maddr="/a")
    assert roster(state_of(up, WAITS, seed="r-a-0")) == ("r-a-0", ["/a"])
    assert roster(state_of(replace(up, phase="leaving"), WAITS)) == ("", [])
    assert roster(state_of(replace(up, state=SlotState.DONE), WAITS)) == ("", [])


def test_orders_are_reissued_each_quarter_lease_and_at_pauses(tmp_path):
    controller = Controller(tmp_path)
    state = state_of(ALIVE, WAITS)
    first = controller.orders(state, 1000.0)
    assert controller.orders(state, 1149.0) == first
    assert controller.orders(replace(state, monitors_lost=1), 1149.5) == first
    renewed = controller.orders(state, 1150.0)
    assert (renewed.version > first.version, renewed.lease_until_s) == (True, 1750.0)
    paused = controller.orders(replace(state, paused_at_s=1151.0), 1151.0)
    assert paused.paused
    assert paused.version > renewed.version
    assert not controller.orders(state, 1152.0).paused


def test_restarts_and_clock_changes_never_give_older_orders(tmp_path):
    controller = Controller(tmp_path)
    state = state_of(ALIVE, WAITS)
    first = controller.orders(state, 1000.0)
    controller.restart()
    assert controller.orders(state, 1001.0) == first  # nothing to say
    controller.restart()
    back = controller.orders(state, 500.0)
    assert back.version > first.version
    assert orders_expiration_s(back.version) > orders_expiration_s(
        first.version
    )  # nodes keep what expires last
    assert back.lease_s == 600.0
    assert back.issued_s == 1600.0  # a whole lease later, which peers count from its receipt
    assert controller.orders(replace(state, paused_at_s=1.0), 510.0).issued_s == 1610.0
    (tmp_path / "monitor" / ORDERS_FILE).write_bytes(b"damaged")
    controller.restart()
    assert controller.orders(state, 1002.0).version > back.version


def test_a_run_that_is_stopping_renews_no_lease(tmp_path):
    """Else a VM that cannot be told to end would live for as long as the controller does."""
    controller = Controller(tmp_path)
    state = state_of(ALIVE, WAITS)
    first = controller.orders(state, 1000.0)
    ending = Slot("a", SlotState.ENDED, ending="r-a-0")
    stopping = state_of(ending, Slot("b", SlotState.ENDED), stop_status="budget")
    for now_s in (1100.0, 1150.0, 1599.0):
        assert controller.orders(stopping, now_s) == first
    controller.restart()
    assert controller.orders(stopping, 9999.0) == first
    assert "r-a-0" in {p.vm for p in first.peers}  # until then it may leave politely


def test_the_replacement_is_allowed_beside_an_announced_vm(tmp_path):
    waits = Slot("b", generation=1, ending="r-b-0", notice_at_s=1100.0)
    orders = Controller(tmp_path).orders(state_of(ALIVE, waits), 1000.0)
    assert [p.vm for p in orders.peers] == ["monitor", "r-a-0", "r-b-0", "r-b-1"]


def test_announced_vms_are_dropped_when_the_allowlist_is_full(tmp_path):
    names = [f"s{i:03}" for i in range(MAX_PEERS)]
    spec = replace(SPEC, slots=tuple(SlotSpec(name, (PLACE,), Policy()) for name in names))
    lives = [Slot(name, SlotState.BOOTING, vm=f"r-{name}-0") for name in names]
    storm = [Slot(name, generation=1, ending=f"r-{name}-0", notice_at_s=1100.0) for name in names[:40]]
    orders = Controller(tmp_path).orders(RunState(spec, (*storm, *lives[40:])), 1000.0)
    told = {p.vm for p in orders.peers}
    assert len(told) == MAX_PEERS + 1
    assert told >= {f"r-{name}-1" for name in names[:40]} | {f"r-{name}-0" for name in names[40:]}


def test_a_run_that_has_ended_needs_no_keys(tmp_path):
    controller = Controller(tmp_path)
    state = state_of(ALIVE, WAITS)
    controller.orders(state, 1000.0)
    forget_keys(tmp_path)
    assert not (tmp_path / "keys" / "run.key").exists()
    assert (tmp_path / "keys" / "run.pub").is_file()
    controller.restart()
    controller.file.write(replace(state, ended=True), [], 1001.0)
    with pytest.raises(FileNotFoundError):  # no second key for a run: its peers would obey neither
        run_key(tmp_path)


def test_more_peers_than_fit_are_refused(tmp_path):
    spec = replace(SPEC, slots=tuple(SlotSpec(f"s{i}", (PLACE,), Policy()) for i in range(400)))
    slots = tuple(Slot(f"s{i}", SlotState.BOOTING, vm=f"r-s{i}-0") for i in range(400))
    with pytest.raises(OrdersError, match="401 peers take"):
        RosterFile(tmp_path).write(RunState(spec, slots), [], 1000.0)


def test_an_experiment_with_too_many_peers_is_refused_before_anything_is_rented(tmp_path):
    spec = load("local-2")
    crowd = spec.model_copy(update={"peers": spec.peers * 76})
    with pytest.raises(
        UsageError, match=r"152 peers, but a signed record of the allowlist holds at most 150"
    ):
        preflight(approved_plan(crowd, "local", {}, cores=2), tmp_path)


def test_the_last_epoch_is_ordered_at_once_and_again_after_a_restart(tmp_path):
    controller = Controller(tmp_path)
    state = state_of(ALIVE, WAITS)
    first = controller.orders(state, 1000.0)
    assert first.last_epoch is None
    ending = replace(state, last_epoch=7, ended_by="samples")
    second = controller.orders(ending, 1001.0)
    assert (second.last_epoch, second.version > first.version) == (7, True)
    assert controller.orders(ending, 1002.0) == second
    controller.restart()
    assert controller.orders(ending, 1003.0).last_epoch == 7
