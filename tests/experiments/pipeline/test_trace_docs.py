"""docs/trace.md: its examples run, and its table names figures that exist."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from chrome_format import problems

from analysis.pipeline.statistics import BatchStatistics, Timing
from experiments.pipeline.trace import RECORDS
from experiments.pipeline.trace_format import RECORD

PAGE = (Path(__file__).parents[3] / "docs" / "trace.md").read_text(encoding="utf-8")


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "script"}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/trace.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in printed[:2]] == ["decode: 64 samples", "flip: 64 samples"]
    assert printed[-1] == "Delivery in order costs nothing."
    assert len(names["trace"].batches) == len(names["trace"].phases) == 8
    document = json.loads((tmp_path / "my-trace.json").read_text())
    assert problems(document) == []
    assert {"SDecode", "SFlip", "SBatchConsumed_7"} <= {event["name"] for event in document["traceEvents"]}


def test_the_table_names_figures():
    figures = {field.name for record in (Timing, BatchStatistics) for field in dataclasses.fields(record)}
    named = {
        name
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert len(named) > 8
    assert named <= figures


def test_the_space_of_a_thread_is_as_stated():
    assert f"{RECORDS:,} events ({RECORDS * RECORD.size / 1e6:.1f} MB; {RECORDS // 5:,} samples" in PAGE
