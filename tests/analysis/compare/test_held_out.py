"""A held-out figure of two experiments, compared with a table computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_run import write_run

from analysis.compare.held_out import HeldOutComparison, HeldOutRun, Side, held_out_document
from analysis.compare.held_out_runs import held_out_run
from analysis.replay import read_folder
from analysis.report.study.held_out import held_out_lines, held_out_section
from experiments.parse.load import load, to_document
from metrics.records import EpochRecord
from metrics.store.database import RunStore


def run(seed: int, accuracy: float | None, experiment: str = "c8") -> HeldOutRun:
    return HeldOutRun(
        experiment,
        f"{experiment}-{seed}",
        seed,
        accuracy,
        21,
        7680,
        161_280,
        364,
        False,
        0,
        "local",
        True,
    )


def side(experiment: str, values: Sequence[float | None]) -> Side:
    return Side(experiment, tuple(run(n, value, experiment) for n, value in enumerate(values, 1)))


# Mean, standard deviation over n - 1 and pooled standard deviation by hand:
# 0.90 0.92 0.94: squares off the mean 4, 0, 4 (1e-4), over 2: 4e-4, root 0.02; 0.92 0.93 0.94: 1, 0, 1: 1e-4, root 0.01;
# pooled sqrt((4e-4 + 1e-4) / 2) = sqrt(2.5e-4) = 0.0158114.
@pytest.mark.parametrize(
    ("ours", "theirs", "difference", "pooled_sd", "inside"),
    [
        ((0.90, 0.92, 0.94), (0.92, 0.93, 0.94), -0.01, 0.0158114, True),
        ((0.92, 0.93, 0.94), (0.90, 0.92, 0.94), 0.01, 0.0158114, True),
        ((0.90, 0.92, 0.94), (0.95, 0.96, 0.97), -0.04, 0.0158114, False),
        ((0.90, 0.92, 0.94), (0.941, 0.951, 0.961), -0.031, 0.0158114, True),  # limit 0.0316228
        ((0.90, 0.92, 0.94), (0.942, 0.952, 0.962), -0.032, 0.0158114, False),
        ((0.90, 0.92), (0.91, 0.93), -0.01, 0.0141421, True),  # variances 2e-4 each
    ],
)
def test_by_hand(
    ours: Sequence[float], theirs: Sequence[float], difference: float, pooled_sd: float, inside: bool
):
    found = HeldOutComparison(side("c8", ours), side("alone", theirs))
    assert found.difference == pytest.approx(difference)
    assert found.pooled_sd == pytest.approx(pooled_sd, abs=1e-7)
    assert found.limit == pytest.approx(2 * pooled_sd, abs=2e-7)
    assert (found.inside, found.why) == (inside, "")


def test_unequal_counts_are_weighted_by_degrees_of_freedom():
    """Variances 4e-4 (n 3) and 2e-4 (n 2): sqrt((2 * 4e-4 + 1 * 2e-4) / 3) = 0.0182574."""
    found = HeldOutComparison(side("c8", (0.90, 0.92, 0.94)), side("alone", (0.91, 0.93)))
    assert found.pooled_sd == pytest.approx(0.0182574, abs=1e-7)
    assert (found.inside, found.why) == (None, "the seeds are not equal: 1, 2, 3 against 1, 2")


accuracies = st.lists(st.integers(0, 364).map(lambda right: right / 364), min_size=2, max_size=9)


@given(accuracies, accuracies)
def test_comparison_is_symmetric(ours: list[float], theirs: list[float]):
    count = min(len(ours), len(theirs))
    one, other = side("c8", ours[:count]), side("alone", theirs[:count])
    found, back = HeldOutComparison(one, other), HeldOutComparison(other, one)
    assert found.difference == -(back.difference or 0.0)
    assert found.pooled_sd == pytest.approx(back.pooled_sd)
    assert one.sd is not None
    assert other.sd is not None
    assert found.pooled_sd == pytest.approx(((one.sd**2 + other.sd**2) / 2) ** 0.5)
    assert (found.inside is None) == (found.pooled_sd == 0)


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        ((), "c8 has 0 runs with a held-out accuracy, and a standard deviation needs two"),
        ((0.9,), "c8 has 1 run with a held-out accuracy, and a standard deviation needs two"),
        ((0.9, None), "c8 has 1 run with a held-out accuracy, and a standard deviation needs two"),
    ],
)
def test_without_two_runs_there_is_no_verdict(ours: Sequence[float | None], says: str):
    found = HeldOutComparison(side("c8", ours), side("alone", (0.9, 0.92)))
    assert (found.of.sd, found.pooled_sd, found.limit, found.inside, found.why) == (
        None,
        None,
        None,
        None,
        says,
    )
    document = held_out_document(found)
    assert document is not None
    assert (document["of"]["sd"], document["pooled_sd"], document["inside"]) == (None, None, None)
    assert held_out_lines(found)[-1].endswith(f"no verdict: {says}")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 7}, "the seeds are not equal: 1, 7 against 1, 2"),
        ({"seed": None}, "the seeds are not equal: 1, unknown against 1, 2"),
        ({"updates": 20}, "updates are not equal: 20 to 21"),
        ({"target_batch_size": 7424}, "target batch sizes are not equal: 7424 to 7680"),
        ({"samples": 165_000}, "samples trained on are not equal: 161280 to 165000"),
        ({"samples": None}, "samples trained on: unknown for c8-2"),
        ({"heldout_samples": 300}, "held-out samples are not equal: 300 to 364"),
        ({"samples": 164_000}, ""),  # within 2 %
    ],
)
def test_verdict_requires_otherwise_equal_runs(change: dict[str, int | None], says: str):
    ours = Side("c8", (run(1, 0.90), replace(run(2, 0.92), **change)))
    found = HeldOutComparison(ours, side("alone", (0.91, 0.92)))
    assert (found.why, found.inside) == (says, None if says else True)


def test_no_verdict_if_accuracies_do_not_vary():
    found = HeldOutComparison(side("c8", (0.9, 0.9)), side("alone", (0.9, 0.9)))
    assert (found.difference, found.pooled_sd, found.inside) == (0, 0, None)
    assert "do not vary" in found.why


def test_contended_run_counts_only_on_request():
    runs = (run(1, 0.90), replace(run(2, 0.92), host_contended=True))
    theirs = side("alone", (0.91, 0.92))
    found = HeldOutComparison(Side("c8", runs), theirs)
    assert found.why == (
        "c8 has 1 run with a held-out accuracy (1 more on a host that was too busy), and a standard deviation needs two"
    )
    assert "not counted: the host was too busy" in held_out_section(found).html
    assert HeldOutComparison(Side("c8", runs, include_contended=True), theirs).inside is True


def test_lines_show_both_means_and_the_verdict():
    found = HeldOutComparison(side("c8", (0.90, 0.92, 0.94)), side("alone", (0.92, 0.93, 0.94)))
    assert held_out_lines(found) == [
        "held-out accuracy after 21 updates of 7680 samples (364 held out, seeds 1, 2, 3):",
        "  c8     mean 0.9200, standard deviation 0.0200, n 3 (0.9000, 0.9200, 0.9400); emulated",
        "  alone  mean 0.9300, standard deviation 0.0100, n 3 (0.9200, 0.9300, 0.9400); emulated",
        "  difference -0.0100, pooled standard deviation 0.0158: less than 2 of them (0.0316)",
    ]
    far = HeldOutComparison(side("c8", (0.1, 0.12, 0.1)), side("alone", (0.92, 0.93, 0.94)))
    assert "NOT less than 2 of them" in held_out_lines(far)[-1]
    assert held_out_lines(None) == []
    assert held_out_document(None) is None


def test_dropped_rounds_are_shown_with_the_figures():
    runs = (replace(run(1, 0.90), dropped_rounds=2), run(2, 0.92), replace(run(3, None), dropped_rounds=9))
    found = HeldOutComparison(Side("c8", runs), side("alone", (0.91, 0.92)))
    assert held_out_lines(found)[1].endswith("n 2 (0.9000, 0.9200); emulated; dropped rounds: 2")
    assert "dropped" not in held_out_lines(found)[2]
    assert "<td>2</td>" in held_out_section(found).html
    document = held_out_document(found)
    assert document is not None
    assert [r["dropped_rounds"] for r in document["of"]["runs"]] == [2, 0, 9]
    unknown = replace(run(2, 0.92), dropped_rounds=None)
    found = HeldOutComparison(Side("c8", (run(1, 0.90), unknown)), side("alone", (0.91, 0.92)))
    assert held_out_lines(found)[1].endswith("dropped rounds: unknown")


def test_origin_is_shown_with_the_figures():
    busy = replace(run(1, 0.90), host_contended=True)
    rented = replace(run(2, 0.92), target="sky", emulated=False, host_contended=None)
    runs = (busy, rented, replace(run(3, 0.94), host_contended=None))
    found = HeldOutComparison(Side("c8", runs, include_contended=True), side("alone", (0.92, 0.93, 0.94)))
    assert held_out_lines(found)[1].endswith(
        "; emulated; rented; host TOO BUSY in 1 of 3; host unknown in 1 of 3"
    )
    document = held_out_document(found)
    assert document is not None
    assert [(r["target"], r["emulated"], r["host_contended"]) for r in document["of"]["runs"]] == [
        ("local", True, True), ("sky", False, None), ("local", True, None),
    ]  # fmt: skip
    assert '<td class="text">TOO BUSY</td>' in (html := held_out_section(found).html)
    assert '<td class="text">rented</td>' in html


def test_a_run_s_own_accuracy(tmp_path: Path):
    write_run(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("experiment", to_document(load("geo-c8", ["seed=4"], shipped=True)))
    numbers = read_folder(tmp_path).run
    assert held_out_run(numbers, "loss").value == 0.2
    assert held_out_run(numbers, "wer").value is None
    found = held_out_run(numbers, "accuracy")
    assert found == HeldOutRun(
        "geo-c8", "geo-c8-20231114-aaaa", 4, 0.934, 5, 4096, 5 * 4096, 300, False, 0, "local", True
    )
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("evaluations", [])
    assert replace(found, value=None, updates=None, samples=None, heldout_samples=None) == (
        held_out_run(read_folder(tmp_path).run, "accuracy")
    )


def test_samples_are_unknown_if_a_record_is_missing(tmp_path: Path):
    """Short epochs may end before the monitor reads their records."""
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("run_id", "x-20231114-aaaa")
        store.set_meta("experiment", {"name": "x", "seed": 1})
        store.set_meta(
            "evaluations", [{"vm": "x-0", "epoch": 3, "accuracy": 0.9, "loss": 0.2, "samples": 364}]
        )
        for epoch in (1, 3):
            row = EpochRecord(
                vm="x-0", epoch=epoch, began_s=10.0 * epoch, ended_s=10.0 * epoch + 9, steps=3, samples=96, calc_s=9.0,
                comm_s=0.0, load_s=0.0, move_s=0.0, forward_s=3.0, backward_s=6.0, optimizer_local_s=0.0,
                optimizer_sync_s=0.0, other_s=0.0, loss=2.3, group_size=1, dropped="", ran="digits",
            )  # fmt: skip
            store.append("epochs", [row])
    found = held_out_run(read_folder(tmp_path).run, "accuracy")
    assert (found.updates, found.samples, found.value) == (3, None, 0.9)
