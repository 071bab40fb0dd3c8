"""The catalogue is whole: every row, file format and column that names a figure names one that it has."""

from __future__ import annotations

from dataclasses import fields

import pytest

from experiments.catalog import Published
from experiments.study_file.baseline import COLUMNS, LOSSES
from experiments.study_file.limits import FIGURES as LIMITED
from metrics.figures import EPOCH, FIGURES, HEADLINES, PAPER, REPLAY, SUMMARY, compared_figure, headlines


def test_a_study_file_names_figures_of_the_catalogue_only():
    assert {*COLUMNS, *LIMITED} <= FIGURES.keys()
    computed = [key for key in COLUMNS if compared_figure(key).of_epochs or compared_figure(key).of_run]
    assert {*computed, *LOSSES} == {*COLUMNS}


def test_limits_are_of_what_the_paper_has_on_our_basis():
    published = {compared_figure(key).key for key in LIMITED}
    assert published == {*PAPER} - {"granularity_phase_timed"}


def test_the_paper_s_columns_are_those_of_its_file():
    columns = {field.name for field in fields(Published)}
    assert {FIGURES[key].paper_column for key in PAPER} <= columns
    assert {key for key, figure in FIGURES.items() if figure.paper_column} == {*PAPER}


@pytest.mark.parametrize("key", EPOCH)
def test_a_table_of_epochs_can_compute_and_explain_its_columns(key: str):
    assert FIGURES[key].of_epoch
    assert FIGURES[key].epoch_meaning


@pytest.mark.parametrize("key", [key for key in REPLAY if key not in ("n_epochs", "sps_low", "sps_high")])
def test_a_row_s_columns_are_explained(key: str):
    assert FIGURES[key].meaning


def test_headlines_are_in_a_summary_and_leave_out_what_most_runs_have_not():
    assert {*HEADLINES} <= {*SUMMARY}
    shown = [figure.key for figure, _ in headlines({"sps": {"value": 1.0}}, "epoch_s")]
    assert shown == ["sps", "granularity_of_means", "calc_s", "comm_s", "epoch_s"]
    assert "overlapped_s" in [figure.key for figure, _ in headlines({"overlapped_s": {"value": 1.0}})]


def test_a_comparison_s_throughput_is_the_paper_s():
    assert compared_figure("sps") is FIGURES["sps_epoch_mean"]
    assert compared_figure("comm_s").heading == "communication, s"
    assert compared_figure("comm_s").words == "communication (s)"
