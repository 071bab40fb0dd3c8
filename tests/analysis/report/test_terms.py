"""The legend of the study report explains the paper's names that are on the page, and no others."""

from __future__ import annotations

import pytest

from analysis.compare.run_figures import StudyRun
from analysis.report.study.terms import terms


@pytest.mark.parametrize(
    ("page", "named"),
    [
        ("geo-c8: 212 samples/s", set()),
        ("CV C-8: 212 samples/s", {"CV", "C-8"}),
        ("<text>C-6</text>", {"C-8"}),
    ],
)
def test_names_of_the_paper_are_explained_only_where_they_occur(page: str, named: set[str]):
    run = StudyRun("r", "geo-c8", "C", "US+EU", "ConvNextLarge", "T4:1", 8, "emulated", False, {}, {})
    words = {word for word, _ in terms([run], paper=False, page=page)}
    assert words & {"CV", "NLP", "C-8"} == named
    assert {"C", "Granularity", "One clock"} <= words


def test_the_greatest_run_of_the_last_series_is_named():
    runs = [
        StudyRun("r", "geo-a8", "A", "US", "ConvNextLarge", "T4:1", 8, "emulated", False, {}, {}),
        StudyRun("s", "geo-b4", "B", "US+EU", "ConvNextLarge", "T4:1", 4, "emulated", False, {}, {}),
    ]
    assert ("B-4", "Series B with 4 VMs.") in terms(runs, paper=False, page="A-8 and B-4")
