"""The paper's logs: every run is imported, all rules agree, and the published figures are reproduced."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from statistics import fmean

import pytest

from analysis.sources import Opened, opened
from metrics.store.database import RunStore


@pytest.fixture
def runs(paper_traces: Path) -> Generator[Opened, None, None]:
    with opened([paper_traces]) as found:
        yield found


def test_all_runs_are_imported_and_reproduce_the_published_table(runs: Opened):
    assert runs.problems == ()
    assert len(runs.runs) == 20
    singles = 0
    for run in runs.runs:
        with RunStore.open_reader(run.folder / "run.db") as store:
            meta, published = store.meta("imported"), store.meta("published")
            if meta["baseline"]:
                singles += 1
                steps = store.columns("steps")
                rate = sum(steps["samples"][1:]) / sum(steps["wall_s"][1:])
                assert rate == pytest.approx({"CV A-1": 36.8, "NLP A-1": 139.2}[run.label or ""], rel=0.002)
                continue
            assert {s["rule"] for s in meta["sync"].values()} == {"epochs"}
            assert all(s["agree"] and s["found"] == s["authors"] == 3 for s in meta["sync"].values())
            assert not any(nic["doubled"] or nic["gaps"] for nic in meta["nic"].values())
            assert all(clock["jumps"] == 0 for clock in meta["clock"].values())
            assert not any(".csv" in w and "minibatch_loss" not in w for w in store.meta("warnings"))
            epochs = [e for e in store.records("epochs") if e.epoch > store.meta("warmup_epochs")]
            swarm = [e for e in store.records("swarm_epochs") if e.epoch > store.meta("warmup_epochs")]
            assert len(store.records("vms")) == published["vms"]
            assert fmean(e.sps for e in swarm) == pytest.approx(published["sps"], rel=0.002)
            assert fmean(e.duration_s for e in swarm) == pytest.approx(published["epoch_s"], rel=0.002)
            assert fmean(e.calc_s for e in epochs) == pytest.approx(published["calc_s"], rel=0.006)
            assert fmean(e.comm_s for e in epochs) == pytest.approx(published["comm_s"], rel=0.006)
    assert singles == 2


def test_names_give_the_same_as_the_index(runs: Opened, paper_traces: Path, tmp_path: Path):
    chosen = ("hivemind-80", "baseline-76")
    for path in (paper_traces / "wandb").glob("*"):
        if path.name.startswith(tuple(f"{name}-" for name in chosen)):
            (tmp_path / path.name).symlink_to(path)
    with opened([tmp_path]) as bare:
        assert {run.run_id for run in bare.runs} == set(chosen)
        for run in bare.runs:
            twin = next(other for other in runs.runs if other.run_id == run.run_id)
            with (
                RunStore.open_reader(run.folder / "run.db") as mine,
                RunStore.open_reader(twin.folder / "run.db") as other,
            ):
                assert {(e.vm, e.epoch, e.calc_s) for e in mine.records("epochs")} == {
                    (e.vm, e.epoch, e.calc_s) for e in other.records("epochs")
                }
                assert mine.meta("target_batch_size") == (32768 if run.run_id == chosen[0] else None)
                assert {vm.location for vm in mine.records("vms")} == {"unknown"}
                assert {vm.accelerator for vm in mine.records("vms")} == {"T4:1"}
                model = mine.meta("model")["name"]
                assert model == (None if run.run_id == chosen[0] else "RoBERTaXLM")
