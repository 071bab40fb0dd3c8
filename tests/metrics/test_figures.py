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


def test_limits_are_for_figures_that_the_paper_published():
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


def test_headlines_omit_figures_that_most_runs_do_not_have():
    assert {*HEADLINES} <= {*SUMMARY}
    shown = [figure.key for figure, _ in headlines({"sps": {"value": 1.0}}, "epoch_s")]
    assert shown == ["sps", "granularity_of_means", "calc_s", "comm_s", "epoch_s"]
    assert "overlapped_s" in [figure.key for figure, _ in headlines({"overlapped_s": {"value": 1.0}})]


def test_comparison_uses_the_paper_s_throughput():
    assert compared_figure("sps") is FIGURES["sps_epoch_mean"]
    assert compared_figure("comm_s").heading == "communication, s"
    assert compared_figure("comm_s").words == "communication (s)"
