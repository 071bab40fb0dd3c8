"""A run's figures for comparing options: from its store, per epoch, in dollars, and its losses by samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import write_run

from analysis.compare.option_figures import Learned, Measured
from analysis.compare.option_runs import learned_by_run, option_run, uncounted_losses
from analysis.compare.published_runs import compared_run
from analysis.compare.run_figures import study_run
from analysis.replay import read_folder
from experiments.parse.load import load, to_document
from metrics.epochs.throughput import SwarmEpoch
from metrics.store.database import RunStore


def made(folder: Path, *overrides: str) -> Path:
    write_run(folder)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("experiment", to_document(load("geo-c8", overrides, shipped=True)))
    return folder


def test_a_run_s_own_figures(tmp_path: Path):
    folder = made(tmp_path)
    read = read_folder(folder)
    row = compared_run(read, {}, "wan")
    run = option_run(read.run, row, "wan")
    assert (run.name, run.label, run.model, run.left_out) == ("CV C-8", "wan", "ConvNextLarge", "")
    assert run.figures["sps"].value == row.emulated["sps"]
    assert run.figures["granularity"].value == row.emulated["granularity"]
    assert len(run.figures["sps"].by_epoch) == 4  # five epochs, one of them the warm-up
    assert run.figures["usd_per_1m"].by_epoch == pytest.approx([run.figures["usd_per_1m"].value] * 4)
    # of eight peers, two in each of four places, 6 of 7 partners are on another continent
    egress = row.emulated["egress_bytes_per_vm_epoch"]
    assert run.figures["intercontinental_bytes"].value == pytest.approx(8 * egress * 6 / 7, rel=1e-6)
    assert run.figures["egress_bytes_per_vm_epoch"].value == pytest.approx(egress)
    assert run.figures["egress_bytes_per_vm_epoch"].by_epoch == pytest.approx([egress] * 4)
    assert run.figures["comm_s"].value == row.emulated["comm_s"]
    assert run.figures["comm_s"].by_epoch == pytest.approx([row.emulated["comm_s"]] * 4)
    assert (run.target, run.scales, run.host_contended) == (
        "local",
        {"bytes": 100, "time": 1, "samples": 8},
        False,
    )
    assert [one.samples for one in run.learned["loss"]] == [4096.0 * k for k in range(1, 6)]
    assert run.learned["loss"][-1].loss == pytest.approx(2.3 / 5 + 0.02 * 3.5)
    assert run.learned["heldout_loss"] == (Learned(5 * 4096.0, 0.2),)
    busy = replace(row, host_contended=True)
    assert option_run(read.run, busy, "wan").left_out == "the host was too busy"
    assert option_run(read.run, busy, "wan", include_contended=True).left_out == ""


def test_loopback_run_does_not_count_as_option(tmp_path: Path):
    read = read_folder(made(tmp_path))
    row = replace(compared_run(read, {}), target="loopback")
    run = option_run(read.run, row, "wan", include_contended=True)
    assert (run.left_out, run.ran_on) == ("loopback: no distance", "loopback")


def test_dollars_are_those_of_the_study_report(tmp_path: Path):
    read = read_folder(made(tmp_path))
    run = option_run(read.run, compared_run(read, {}), "")
    shown = study_run(read.row, read.run)
    per_h, rate = shown.training_usd_per_h, shown.value("sps")
    assert per_h is not None
    assert rate is not None
    assert run.figures["usd_per_1m"].value == pytest.approx(float(per_h) / 3600 / rate * 1e6, rel=0.01)
    assert run.prices == "study-2023-04"


def test_without_a_price_dollars_are_unknown(tmp_path: Path):
    folder = made(tmp_path)
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("price_book", None)
    read = read_folder(folder)
    run = option_run(read.run, compared_run(read, {}), "")
    assert run.figures["usd_per_1m"] == Measured(None)
    assert run.figures["intercontinental_bytes"].value is not None


def epoch(number: int, samples: float, loss: float | None = 1.0, complete: bool = True) -> SwarmEpoch:
    return SwarmEpoch(number, (), 0.0, 1.0, loss, (), (), (), False, None, False, complete, samples)


def test_samples_are_known_up_to_the_first_gap():
    evaluations = [
        {"epoch": 2, "loss": 0.5},
        {"epoch": 2, "loss": 0.7},
        {"epoch": 4, "loss": 0.1},
        {"epoch": 1, "loss": None},
    ]
    found = learned_by_run([epoch(1, 10.0), epoch(2, 12.0, None), epoch(4, 11.0)], evaluations)
    assert found["loss"] == (Learned(10.0, 1.0),)
    assert found["heldout_loss"] == (Learned(22.0, pytest.approx(0.6)),)
    assert learned_by_run([epoch(2, 10.0)], evaluations) == {"loss": (), "heldout_loss": ()}
    assert learned_by_run([epoch(1, 10.0, complete=False)], ()) == {"loss": (), "heldout_loss": ()}
    assert uncounted_losses([epoch(2, 10.0)], evaluations) == {"loss", "heldout_loss"}
    assert uncounted_losses([epoch(1, 10.0)], evaluations) == {"heldout_loss"}
    assert uncounted_losses([epoch(1, 10.0), epoch(2, 1.0)], evaluations) == set()
    assert uncounted_losses([epoch(1, 10.0, None)], ()) == set()
