"""docs/notebook.md lists the columns of the frames, and its example prints the output shown there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_run import write_run

import orch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "notebook.md").read_text()
EXAMPLE = ROOT / "docs" / "examples" / "compare_runs.py"


def _example(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments], capture_output=True, text=True, cwd=cwd
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", orch.FRAMES)
def test_page_lists_columns_of_each_frame(name: str):
    rows = "".join(f"| `{c.name}` | {c.dtype} | {c.meaning} |\n" for c in orch.FRAMES[name])
    assert f"| column | type | meaning |\n|---|---|---|\n{rows}" in PAGE


@pytest.mark.parametrize("name", orch.FRAMES)
def test_a_duration_or_amount_ends_with_its_unit(name: str):
    units = ("_s", "_bytes", "_h", "_epoch", "_usd", "usd", "bytes", "sps")
    counts = (
        "samples",
        "raw_samples",
        "raw_trained_samples",
        "trained_samples",
        "lost_samples",
        "loss",
        "granularity",
        "granularity_phase_timed",
        "granularity_stall_free",
        "value",
        "host_cpu_share",
        "cpu_mean",
        "cpu_peak",
        "gpu_mean",
        "gpu_peak",
    )
    for column in orch.FRAMES[name]:
        if column.dtype == "float64" and column.name not in counts:
            assert column.name.endswith(units) or column.name.startswith(("sps_", "speedup")), column.name


def test_every_public_method_is_on_the_page():
    for kind in (orch.Run, orch.Study):
        for name in vars(kind):
            if not name.startswith("_") and name != "slots":
                assert re.search(rf"\b{name}\b", PAGE), name


def test_example_runs_on_an_own_run(tmp_path: Path):
    write_run(tmp_path / "run")
    printed = _example("run", cwd=tmp_path)
    assert "- Emulated:" in printed
    assert "geo-c8" in printed
    assert re.search(r"inter_continent +\d+", printed)


def test_the_example_prints_what_the_page_shows(paper_traces: Path):
    shown = re.search(r"```\n\$ python docs/examples/compare_runs.py (.*?[^\\])\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    arguments = shown.group(1).replace("\\\n", " ").split()
    assert _example(*arguments, cwd=paper_traces.parent).strip() == shown.group(2).strip()
