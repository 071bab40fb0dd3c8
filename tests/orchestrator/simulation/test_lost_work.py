"""All peers lost at once in simulated runs with checkpoints: what is lost is bounded, and no epoch counts twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from metrics.epochs.restarts import Training, training
from metrics.records import CHECKPOINT_RESTORED, SWARM_LOST, EpochRecord, VmRecord
from orchestrator.simulation import checks
from orchestrator.simulation.checkpoints import Loss, SimCheckpoints
from orchestrator.simulation.checks import SimulationError
from orchestrator.simulation.driver import Outcome, simulate
from orchestrator.simulation.scenario import scenario


def with_losses(count: int) -> list[Outcome]:
    """Histories of the first seeds whose peers store checkpoints, with losses of all peers and crashes only."""
    drawn = (scenario(seed, days=0.2, peers=4, faults=("all_lost", "crash")) for seed in range(1000))
    made = [one for one, _ in zip((s for s in drawn if s.peers.checkpoint_every), range(count), strict=False)]
    return [simulate(one) for one in made]


def test_replacements_resume_and_at_most_an_interval_is_lost():
    """The bound and the figures are checked in each run; the journal says where training goes on."""
    outcomes = with_losses(8)
    losses = sum(one.fired["all_lost"] for one in outcomes)
    causes = [e.cause for one in outcomes for e in one.journal if e.kind == SWARM_LOST]
    assert losses >= len(outcomes)
    assert any("training goes on at epoch" in cause for cause in causes)
    assert any(e.kind == CHECKPOINT_RESTORED for one in outcomes for e in one.journal)
    assert sum(one.lost_epochs for one in outcomes) > 0


def test_figures_that_count_an_epoch_twice_are_detected(monkeypatch: pytest.MonkeyPatch):
    def counts_everything(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> Training:
        return Training(tuple(records), (), frozenset())

    monkeypatch.setattr(checks, "training", counts_everything)
    with pytest.raises(SimulationError, match="told apart wrongly"):
        with_losses(8)


def test_a_lost_checkpoint_is_detected(monkeypatch: pytest.MonkeyPatch):
    """A store that says nothing was due, and keeps only the first checkpoint."""
    settle = SimCheckpoints.settle

    def only_the_first(self: SimCheckpoints, at_s: float) -> None:
        if not self.names:
            settle(self, at_s)
        self._upload = None if self.names else self._upload

    monkeypatch.setattr(SimCheckpoints, "settle", only_the_first)
    with pytest.raises(SimulationError, match="epochs were lost with all peers, with a checkpoint every"):
        with_losses(8)


def test_the_bound_grows_by_one_interval_for_each_checkpoint_that_was_not_stored():
    assert (Loss(0.0, 17, 10, 5, 1).lost, Loss(0.0, 17, 10, 5, 1).most) == (7, 10)
    store = SimCheckpoints(5, (100.0, 100.0), 1)
    store.came("a", 0.0, alone=True)
    store.came("b", 0.0, alone=False)
    for epoch in range(1, 12):  # 5 is uploaded until 150; 10 is due at 100 and skipped
        store.ended(epoch, 10.0 * epoch, ["a", "b"])
    store.left("a", 120.0)  # the writer
    store.left("b", 130.0)
    assert store.resumed(11, 200.0) == 0
    assert [(one.lost, one.excused, one.most) for one in store.losses] == [(11, 2, 15)]
    assert training(store.records, _ended(store.records)).lost == ()
    store.came("c", 200.0, alone=True)
    store.ended(1, 210.0, ["c"])
    assert {r.epoch for r in training(store.records, _ended(store.records)).kept} == {1}


def test_a_writer_that_is_replaced_more_often_than_one_is_due():
    """Slot a writes, and each of its VMs is lost after 500 s; b trains throughout. One is due every 600 s."""
    store = SimCheckpoints(0, (10.0, 10.0), 1, every_s=600.0)
    store.came("sim-b-0", 0.0, alone=True)
    for life in range(6):
        vm = f"sim-a-{life}"
        store.came(vm, 500.0 * life, alone=False)
        for epoch in range(5 * life + 1, 5 * life + 6):
            store.ended(epoch, 100.0 * epoch, [vm, "sim-b-0"])
        store.left(vm, 500.0 * life + 500.0)
    epochs = sorted(int(name.split("-")[1]) for name in store.names)
    assert epochs == [1, 7, 13, 19, 26], "the first one knows of none; 25 was lost with its writer"


def _ended(records: Sequence[EpochRecord]) -> list[VmRecord]:
    names = sorted({r.vm for r in records})
    return [
        VmRecord(
            vm, vm, 0, "", "", "", True, None, "", "", 0.0, 1.0, 140.0 if vm != "c" else None, "preempted"
        )
        for vm in names
    ]
