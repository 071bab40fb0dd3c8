"""A pipeline of the user, found by its import path."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.pipeline.builtin import digits
from experiments.pipeline.errors import PipelineError
from experiments.pipeline.load import pipeline_at


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"users_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "from experiments.pipeline.builtin import digits\nMINE = digits.pipeline()\nOTHER = 3\n"
    )
    (tmp_path / f"{name}_broken.py").write_text("x = 1\ny = x / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_pipeline_is_found_by_its_path(module: str):
    assert pipeline_at(f"{module}:MINE") == digits.pipeline()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("{}", "write it as module:NAME"),
        ("{}:NONE", "defines no NONE"),
        ("{}:OTHER", "is a int, not a Pipeline"),
        ("{}_broken:MINE", r"_broken\.py:2: ZeroDivisionError: division by zero"),
        ("{}_absent:MINE", "No module named"),
    ],
)
def test_what_is_no_pipeline_is_refused(module: str, path: str, reason: str):
    with pytest.raises(PipelineError, match=reason):
        pipeline_at(path.format(module))
