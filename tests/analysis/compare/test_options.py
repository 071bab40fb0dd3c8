"""Gains of options: ratios with intervals, losses after equal samples, exclusions, and the section."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.compare.option_figures import FIGURES, LOSSES, Learned, Measured, OptionRun
from analysis.compare.options import Gain, Gains, gains, gains_document
from analysis.report.study.build import _NAMED, _origins
from analysis.report.study.options import (
    GAIN_COLUMNS,
    gain_cards,
    gain_long_rows,
    gain_notes,
    gain_section,
    gain_table,
)
from experiments.study_file.baseline import COLUMNS

BATCH = 1000.0


def a_run(
    label: str, name: str = "NLP C-8", model: str = "RoBERTaXLM", run_id: str = "", **changes
) -> OptionRun:
    """A run of 100 samples/s, with two epochs and three losses."""
    figures = {
        "sps": Measured(100.0, (99.0, 101.0)),
        "granularity": Measured(0.5, (0.5, 0.5)),
        "comm_s": Measured(40.0, (40.0, 40.0)),
        "usd_per_1m": Measured(12.0, (12.0, 12.0)),
        "egress_bytes_per_vm_epoch": Measured(2e9, (2e9, 2e9)),
        "intercontinental_bytes": Measured(8e9, (8e9, 8e9)),
    }
    run = OptionRun(
        name,
        label,
        model,
        run_id or f"{name} {label}",
        figures,
        losses(2.3, 2.2, 2.1),
        BATCH,
        prices="study-2023-04",
    )
    return replace(run, **changes)


def losses(*values: float, batch: float = BATCH) -> dict[str, tuple[Learned, ...]]:
    found = tuple(Learned(batch * k, value) for k, value in enumerate(values, 1))
    return {"loss": found, "heldout_loss": found[-1:]}


def sps(value: float, *by_epoch: float) -> dict[str, Measured]:
    return {**a_run("").figures, "sps": Measured(value, by_epoch)}


def rows_of(rows: list[Gain]) -> list[OptionRun]:
    return [run for row in rows for run in row.runs]


def row_of(rows: list[Gain], label: str) -> Gain:
    (found,) = (row for row in rows if row.label == label)
    return found


def test_study_columns_match_the_figures():
    assert (*FIGURES, *LOSSES) == COLUMNS


def test_a_ratio_is_to_the_baseline_with_an_interval_over_epochs():
    rows = gains([a_run("kernel"), a_run("wan", figures=sps(140.0, 138.0, 142.0))], "kernel")
    cell = row_of(rows, "wan").cells["sps"]
    assert (cell.value, cell.ratio, cell.n_of) == (140.0, pytest.approx(1.4), "epochs")
    # relative standard errors 1/100 (99, 101) and 2/140 (138, 142); Welch's degrees: 1.78, so 1: t = 12.706
    spread = 12.7062 * math.sqrt(0.01**2 + (2 / 140) ** 2)
    assert cell.low == pytest.approx(1.4 * math.exp(-spread), rel=1e-4)
    assert cell.high == pytest.approx(1.4 * math.exp(spread), rel=1e-4)
    base = row_of(rows, "kernel")
    assert (base.is_baseline, base.cells["sps"].ratio, base.cells["sps"].low) == (True, 1.0, None)


def test_several_runs_on_both_sides_give_the_interval_over_runs():
    runs = [
        a_run("kernel", run_id="k1", figures=sps(100.0, 100.0, 100.0)),
        a_run("kernel", run_id="k2", figures=sps(104.0, 104.0, 104.0)),
        a_run("wan", run_id="w1", figures=sps(150.0, 150.0, 150.0)),
    ]
    one = row_of(gains(runs, "kernel"), "wan").cells["sps"]
    assert (one.ratio, one.n, one.n_of) == (pytest.approx(150 / 102), 1, "epochs")
    more = [*runs, a_run("wan", run_id="w2", figures=sps(156.0, 156.0, 156.0))]
    both = row_of(gains(more, "kernel"), "wan").cells["sps"]
    assert (both.value, both.n, both.n_of) == (153.0, 2, "runs")
    assert both.low is not None
    assert both.low < both.ratio < both.high


def test_an_unknown_figure_stays_unknown():
    unknown = {**a_run("").figures, "usd_per_1m": Measured(None)}
    rows = gains([a_run("kernel"), a_run("wan", figures=unknown)], "kernel")
    assert row_of(rows, "wan").cells["usd_per_1m"].value is None
    assert (
        row_of(gains([a_run("kernel", figures=unknown), a_run("wan")], "kernel"), "wan")
        .cells["usd_per_1m"]
        .ratio
        is None
    )
    nothing = {**a_run("").figures, "intercontinental_bytes": Measured(0.0, (0.0, 0.0))}
    zone = row_of(gains([a_run("kernel"), a_run("zone", figures=nothing)], "kernel"), "zone")
    assert zone.cells["intercontinental_bytes"].ratio == 0.0
    assert zone.cells["intercontinental_bytes"].low is None


def test_other_experiment_uses_the_only_baseline_of_its_model():
    rows = gains(
        [a_run("", "NLP A-8"), a_run("kernel"), a_run("", "CV A-8", "ConvNextLarge"), a_run("x", "CV C-8", "ConvNextLarge")],
        "kernel",
    )  # fmt: skip
    assert [row.against for row in rows] == ["NLP C-8 kernel", "NLP C-8 kernel", "", ""]
    two = [a_run("kernel"), a_run("kernel", "NLP B-8"), a_run("wan", "NLP B-8"), a_run("", "NLP A-8")]
    assert [row.against for row in gains(two, "kernel")] == [
        "NLP C-8 kernel", "NLP B-8 kernel", "NLP B-8 kernel", "",
    ]  # fmt: skip


def test_the_mean_of_the_epochs_ratios_is_not_called_granularity_alone():
    (line,) = gain_table(Gains("kernel", ("granularity",), gains([a_run("kernel")], "kernel")))
    assert line["granularity, mean of ratios"] == "0.5"


def test_a_loss_without_a_record_is_unknown_and_why():
    """Nothing was measured, or only after an unknown number of samples; neither run is said to have recorded nothing."""
    rows = gains([a_run("kernel"), a_run("wan", learned={})], "kernel")
    assert row_of(rows, "wan").cells["loss"].why == "unknown for NLP C-8 wan"
    rows = gains([a_run("kernel"), a_run("wan", learned={}, uncounted=frozenset({"loss"}))], "kernel")
    assert row_of(rows, "wan").cells["loss"].why == (
        "the number of samples before the losses of NLP C-8 wan is unknown"
    )
    rows = gains([a_run("kernel", learned={}), a_run("wan")], "kernel")
    assert row_of(rows, "wan").cells["loss"].why == "NLP C-8 kernel: unknown for NLP C-8 kernel"


def test_runs_that_were_left_out_are_named_in_each_row():
    busy = a_run("wan", run_id="w1", left_out="the host was too busy")
    rows = gain_long_rows(Gains("kernel", COLUMNS, gains([a_run("kernel"), a_run("wan"), busy], "kernel")))
    assert {(row["label"], row["left_out"]) for row in rows} == {
        ("kernel", ""),
        ("wan", "w1: the host was too busy"),
    }


def test_losses_use_the_smallest_common_count_without_interpolation():
    long = a_run("wan", learned=losses(2.31, 2.21, 2.11, 2.01))
    cell = row_of(gains([a_run("kernel"), long], "kernel"), "wan").cells["loss"]
    assert (cell.value, cell.samples) == (2.11, (3000.0, 3000.0))
    assert cell.difference == pytest.approx(0.01)
    assert (cell.noise, cell.within_noise) == (None, None)
    assert cell.why == "noise unknown: NLP C-8 kernel has 1 run, and a standard deviation needs two"
    # its held-out loss was only taken after 4000 samples, which the baseline never reached
    rows = gains([a_run("kernel"), long], "kernel")
    late = row_of(rows, "wan").cells["heldout_loss"]
    assert (late.value, late.why) == (None, "not equal samples")
    table = gain_table(Gains("kernel", ("heldout_loss",), rows))
    assert table[1]["held-out loss"] == "unknown (not equal samples)"
    none = replace(a_run("wan"), learned={"loss": a_run("").learned["loss"]})
    assert (
        row_of(gains([a_run("kernel"), none], "kernel"), "wan").cells["heldout_loss"].why
        == "unknown for NLP C-8 wan"
    )
    other = row_of(gains([replace(none, label="kernel"), a_run("x")], "kernel"), "x").cells["heldout_loss"]
    assert (other.value, other.why) == (2.1, "NLP C-8 kernel: unknown for NLP C-8 wan")


@given(
    st.lists(st.floats(1.0, 300.0), min_size=1, max_size=8),
    st.lists(st.floats(1.0, 300.0), min_size=1, max_size=8),
)
def test_no_record_is_beyond_the_count_and_tolerance(ours, theirs):
    def learned(steps: list[float]) -> dict[str, tuple[Learned, ...]]:
        ends = [math.fsum(steps[: k + 1]) for k in range(len(steps))]
        return {"loss": tuple(Learned(end, 1.0 / end) for end in ends), "heldout_loss": ()}

    runs = [a_run("kernel", learned=learned(theirs)), a_run("wan", learned=learned(ours))]
    count = min(run.learned["loss"][-1].samples for run in runs)
    for run in runs:
        cell = row_of(gains(runs, "kernel"), run.label).cells["loss"]
        fitting = [one for one in run.learned["loss"] if one.samples <= count + BATCH / 10]
        assert cell.value == (fitting[-1].loss if fitting else None)
        if cell.difference is not None:
            assert abs(cell.samples[0] - count) <= BATCH / 10 * (1 + 1e-9)


def test_small_overshoot_counts_as_equal_samples():
    over = a_run("wan", learned=losses(2.3, 2.2, 2.1, batch=1030.0))
    cell = row_of(gains([a_run("kernel"), over], "kernel"), "wan").cells["loss"]
    assert (cell.value, cell.samples, cell.difference) == (2.1, (3090.0, 3090.0), 0.0)
    far = a_run("wan", learned=losses(2.3, 2.2, 2.1, batch=1200.0))
    cell = row_of(gains([a_run("kernel"), far], "kernel"), "wan").cells["loss"]
    assert (cell.value, cell.samples, cell.difference) == (2.2, (2400.0, 2400.0), None)
    table = gain_table(Gains("kernel", ("loss",), gains([a_run("kernel"), far], "kernel")))
    assert table[1]["training loss"] == "2.2000 at 2,400 (not equal samples)"


def test_row_can_name_the_row_to_compare_with():
    full = a_run(
        "full",
        figures=sps(100.0, 99.0, 101.0),
        learned=losses(2.4, 2.3, 2.2, batch=2500.0),
        target_batch=2500.0,
    )
    late = replace(full, label="delayed", run_id="d", figures=sps(150.0, 149.0, 151.0), against="full")
    rows = gains([a_run("kernel"), full, late], "kernel")
    assert [(row.label, row.against, row.is_baseline) for row in rows] == [
        ("kernel", "NLP C-8 kernel", True), ("full", "NLP C-8 kernel", False), ("delayed", "NLP C-8 full", False),
    ]  # fmt: skip
    # an update from other samples is no equal learning, whatever their sum is
    other = row_of(rows, "full").cells["loss"]
    assert (other.value, other.difference, other.why) == (2.2, None, "another target batch")
    own = row_of(rows, "delayed").cells["loss"]
    assert (own.value, own.samples, own.difference) == (2.2, (7500.0, 7500.0), 0.0)
    assert row_of(rows, "kernel").cells["loss"].samples == (3000.0, 3000.0)
    assert "NLP C-8 delayed is compared with NLP C-8 full." in gain_notes(Gains("kernel", ("sps",), rows))


def test_noise_comes_from_the_baseline_s_runs():
    base = [
        a_run("kernel", run_id=f"k{k}", learned=losses(2.3, last))
        for k, last in enumerate((2.10, 2.11, 2.12))
    ]
    near, far = a_run("near", learned=losses(2.3, 2.13)), a_run("far", learned=losses(2.3, 2.17))
    rows = gains([*base, near, far], "kernel")
    # standard deviation of 2.10, 2.11 and 2.12 is 0.01; t of 2 degrees is 4.3027; one run against three
    noise = 4.302653 * 0.01 * math.sqrt(1 + 1 / 3)
    cell = row_of(rows, "near").cells["loss"]
    assert (cell.noise, cell.noise_n, cell.why) == (pytest.approx(noise), 3, "")
    assert [row_of(rows, label).cells["loss"].within_noise for label in ("near", "far")] == [True, False]
    table = {row["experiment"]: row["training loss"] for row in gain_table(Gains("kernel", ("loss",), rows))}
    assert table["NLP C-8 near"] == "2.1300 at 2,000 (+0.0200, within noise 0.0497)"
    assert table["NLP C-8 far"] == "2.1700 at 2,000 (+0.0600, BEYOND noise 0.0497)"
    notes = gain_notes(Gains("kernel", ("loss",), rows))
    assert "for one run against NLP C-8 kernel (n 3) training loss 0.0497." in notes[-1]
    two = row_of(gains([*rows_of(rows), replace(near, run_id="n2")], "kernel"), "near").cells["loss"]
    assert two.noise == pytest.approx(4.302653 * 0.01 * math.sqrt(1 / 2 + 1 / 3))
    alone = Gains("kernel", ("loss",), gains([base[0], near], "kernel"))
    assert gain_table(alone)[1]["training loss"] == "2.1300 at 2,000 (+0.0300, noise unknown)"
    assert gain_notes(alone)[-1] == (
        "Noise unknown: NLP C-8 kernel has 1 run, and a standard deviation needs two (NLP C-8 kernel training loss, "
        "NLP C-8 near training loss)."
    )
    still = [replace(run, learned=losses(2.3, 2.1)) for run in base]
    found_row = row_of(gains([*still, near], "kernel"), "near").cells["loss"]
    assert (found_row.noise, found_row.within_noise) == (None, None)
    assert found_row.why == "noise unknown: NLP C-8 kernel has runs whose losses do not vary"


def test_excluded_run_is_listed_but_not_in_the_figures():
    busy = a_run("wan", run_id="w2", figures=sps(10.0, 10.0, 10.0), left_out="the host was too busy")
    rows = gains([a_run("kernel"), a_run("wan", run_id="w1"), busy], "kernel")
    wan = row_of(rows, "wan")
    assert (wan.cells["sps"].value, wan.cells["sps"].n) == (100.0, 1)
    document = json.loads(json.dumps(gains_document(Gains("kernel", COLUMNS, rows))))
    found_row = document["gains"][1]
    assert found_row["left_out"] == [{"run_id": "w2", "why": "the host was too busy"}]
    assert found_row["run_ids"] == ["w1"]
    alone = gains([a_run("kernel"), busy], "kernel")
    line = gain_table(Gains("kernel", ("sps", "loss"), alone))[1]
    assert (line["runs"], line["mean of epoch rates, samples/s"], line["training loss"]) == (
        0,
        "unknown",
        "unknown",
    )
    assert row_of(alone, "wan").cells["sps"].why == "the host was too busy"
    assert line["note"] == "the host was too busy"
    base = replace(a_run("kernel"), left_out="the host was too busy")
    cell = row_of(gains([base, a_run("wan")], "kernel"), "wan").cells["sps"]
    assert (cell.ratio, cell.why) == (None, "NLP C-8 kernel: the host was too busy")


def test_origin_and_busy_host_are_shown_with_gains():
    scales = {"bytes": 100.0, "time": 1.0, "samples": 8.0}
    calm = a_run("kernel", target="local", scales=scales, host_contended=False)
    busy = a_run("wan", run_id="w1", target="local", scales=scales, host_contended=True)
    unknown = a_run("wan", run_id="w2", target="local", scales={**scales, "samples": 1.0})
    rented = a_run("none", target="sky", origin="own")
    found = Gains("kernel", COLUMNS, gains([calm, busy, unknown, rented], "kernel"))
    table = gain_table(found)
    assert [line["on"] for line in table] == ["emulated", "emulated", "rented"]
    assert [line["note"] for line in table] == [
        "baseline",
        "host TOO BUSY in 1 of 2; host unknown in 1 of 2",
        "",
    ]
    assert gain_notes(found)[0] == (
        "Emulated, with figures at full scale; scales: bytes 100, time 1, samples 8 (NLP C-8 kernel, NLP C-8 wan); "
        "bytes 100, time 1, samples 1 (NLP C-8 wan)."
    )
    assert gain_notes(Gains("kernel", COLUMNS, gains([calm], "kernel")))[0].endswith(
        "scales: bytes 100, time 1, samples 8."
    )
    document = gains_document(found)["gains"]
    assert [row["host_contended"] for row in document] == [False, True, None]
    assert document[1]["runs"][0] == {
        "run_id": "w1", "target": "local", "origin": "emulated", "scales": scales, "host_contended": True,
    }  # fmt: skip
    long = {row["label"]: row for row in gain_long_rows(found)}
    assert (long["wan"]["origin"], long["wan"]["host_contended"]) == ("emulated", True)
    assert long["wan"]["scales"] == "bytes 100, time 1, samples 8; bytes 100, time 1, samples 1"
    assert table[1]["communication, s"] == "40 (1.000x, 1.000 to 1.000)"
    assert table[1]["egress GB per VM and epoch"] == "2 (1.000x, 1.000 to 1.000)"
    shown = {(row["label"], row["ran_on"]) for row in gain_section(found).rows}
    assert ("none", "rented") in shown


def test_the_document_s_keys():
    assert gains_document(None) == {"baseline": None, "gains": [], "expected": []}
    document = gains_document(Gains("kernel", ("sps",), gains([a_run("kernel"), a_run("wan")], "kernel")))
    assert document["baseline"] == "kernel"
    row = document["gains"][1]
    assert list(row) == [
        "experiment", "label", "model", "baseline", "against", "run_ids", "dropped_rounds", "left_out",
        "host_contended", "runs", "figures",
    ]  # fmt: skip
    assert tuple(row["figures"]) == COLUMNS
    assert set(row["figures"]["usd_per_1m"]) == {"value", "n", "ratio", "low", "high", "n_of", "why"}
    assert set(row["figures"]["loss"]) == {
        "value", "n", "samples_least", "samples_most", "difference", "noise", "noise_n", "within_noise", "why",
    }  # fmt: skip


def test_the_section_has_one_figure_with_a_panel_each():
    faster = a_run("wan", figures=sps(140.0, 138.0, 142.0))
    runs = [a_run("", "NLP A-8"), a_run("kernel"), faster, a_run("kernel", "CV C-8", "ConvNextLarge")]
    found = Gains("kernel", COLUMNS, gains(runs, "kernel"))
    section = gain_section(found)
    figure = section.draw()
    assert len(figure.axes) == 2 * 4
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown[:3] == ["100  1.000x", "100", "140  1.400x"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["NLP A-8", "kernel", "wan"]
    assert [row["experiment"] for row in section.table] == [
        "NLP A-8",
        "NLP C-8 kernel",
        "NLP C-8 wan",
        "CV C-8 kernel",
    ]
    assert set(GAIN_COLUMNS) == set(gain_long_rows(found)[0])
    assert {row["origin"] for row in section.rows} == {"emulated"}
    (card,) = [card for card in gain_cards(found) if card.name == "Fastest, NLP C-8"]
    assert (card.value, card.more) == ("1.400 x", "wan: 140 samples/s against kernel's 100")


def test_the_section_counts_runs_and_not_rows():
    labels = [f"row-{k}" for k in range(_NAMED)]
    runs = [a_run("kernel", run_id=f"r{k}") for k in range(3)] + [a_run(k, run_id=k) for k in labels]
    section = gain_section(Gains("kernel", COLUMNS, gains(runs, "kernel")))
    assert _origins(section.rows, []) == f"Emulated: {3 + _NAMED} runs."


def test_explicit_comparison_row_is_shown_in_card_and_figure():
    full = a_run("full", figures=sps(120.0, 119.0, 121.0), target_batch=2500.0)
    best = replace(full, label="best", run_id="b", figures=sps(150.0, 149.0, 151.0), against="full")
    found = Gains("kernel", ("sps",), gains([a_run("kernel"), full, best], "kernel"))
    (card,) = (card for card in gain_cards(found) if card.name == "Fastest, NLP C-8")
    assert (card.value, card.more) == ("1.250 x", "best: 150 samples/s against full's 120")
    figure = gain_section(found).draw()
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["kernel", "full", "best (against full)"]
    assert axes.texts[2].get_text() == "150  1.250x"
    dotted = [
        [float(x) for x in np.asarray(line.get_xdata())] for line in axes.lines if line.get_linestyle() == ":"
    ]
    assert dotted == [[120.0, 120.0]]
    (legend,) = figure.legends
    assert "row it is compared with instead" in [text.get_text() for text in legend.get_texts()]
