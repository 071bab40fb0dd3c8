"""The hang criterion of `benchmarks/robustness.py`, and one seed of each case in a swarm of four peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.robust.verdict import Ends, Outage, expected_s, lateness_s, quiet_s
from benchmarks.robustness import APART, CASES

HIT = {"kill-local": "calculation", "kill-matchmaking": "matchmaking", "kill-averaging": "averaging"}


def ended(*times: float, began: tuple[int, float] | None = (0, 0.0)) -> Ends:
    ends = Ends(began=began)
    for number, time_s in enumerate(times, start=1 if began is None else began[0] + 1):
        ends.saw(number, time_s)
    return ends


def test_epoch_lasts_from_the_end_of_the_previous_one() -> None:
    assert ended(6.0, 11.0).durations() == {1: 6.0, 2: 5.0}
    assert ended(6.0, 11.0, began=None).durations() == {2: 5.0}
    joiner = Ends(began=(7, 100.0))
    joiner.saw(8, 105.0)
    joiner.saw(8, 105.1)
    assert joiner.durations() == {8: 5.0}


def test_skipped_epochs_end_with_the_next_one() -> None:
    ends = ended(5.0)
    ends.saw(4, 31.0)
    assert ends.durations() == {1: 5.0, 2: 26.0, 3: 0.0, 4: 0.0}


def test_lateness_is_time_beyond_the_expected_duration() -> None:
    ends = {"a": ended(5.0, 10.0, 42.0), "b": ended(5.0, 10.5, 15.0)}
    assert lateness_s(ends, ["a", "b"], 12.0, 5.0) == pytest.approx(27.0)
    assert lateness_s(ends, ["b"], 12.0, 5.0) == 0.0
    assert lateness_s(ends, ["a", "b"], 50.0, 5.0) == 0.0


def test_outage_excuses_only_its_own_peer() -> None:
    ends = {"a": ended(5.0, 22.0), "b": ended(5.0, 22.0)}
    assert lateness_s(ends, ["a"], 0.0, 5.0, [Outage("a", 8.0, 18.0)]) == pytest.approx(2.0)
    assert lateness_s(ends, ["a"], 0.0, 5.0, [Outage("a", 30.0, 40.0)]) == pytest.approx(12.0)
    assert lateness_s(ends, ["a", "b"], 0.0, 5.0, [Outage("a", 8.0, 18.0)]) == pytest.approx(12.0)


def test_fewer_peers_take_longer() -> None:
    assert expected_s(1000, 50, 1.0, 4, 2.0) == 8.0
    assert expected_s(1000, 50, 1.0, 3, 2.0) == 10.0
    assert quiet_s({"a": ended(5.0, 10.0), "b": ended(5.0, 12.0)}, [2]) == 6.0
    assert quiet_s({"a": ended(5.0, 25.0, 31.0)}, [2, 3]) == 6.0
    assert quiet_s({"a": ended(5.0)}, [7]) is None


@pytest.mark.processes
@pytest.mark.timeout(220)
def test_four_peers_survive_every_case_one_after_the_other(tmp_path: Path) -> None:
    lines, root = tmp_path / "lines.jsonl", Path(__file__).parents[1]
    command = [sys.executable, "-m", "benchmarks.robustness", "--peers", "4"]
    command += ["--together", "--quick", "-o", str(lines)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=190.0)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its swarm
        printed, _ = process.communicate()
    found = [json.loads(text) for text in lines.read_text().splitlines()] if lines.exists() else []
    assert [row["case"] for row in found] == list(CASES), printed
    for row in found:
        assert (row["hang"], row["left"], row["ok"]) == ("", [], True), json.dumps(
            row
        )  # whole, unlike a dict's repr
        assert row["apart"] <= APART
        assert row["hit"] == HIT.get(row["case"], "")
    assert process.returncode == 0
