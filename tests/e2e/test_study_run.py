"""A study of two runs whose process is killed with SIGKILL in the second: it goes on, and runs nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import our_processes
from running import orch, wait_for

from orchestrator.study.core import Ended, Started
from orchestrator.study.journal import read_journal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

_ORCH = Path(sys.executable).with_name("orch")
_STUDY = """
name: two
experiments:
  - {experiment: local-2, label: one, set: {measure.epochs: 1, swarm.target_batch_size: 960}}
  - {experiment: local-2, label: two, set: {measure.epochs: 1, swarm.target_batch_size: 960, seed: 1}}
contended_retries: 0
"""


def test_a_killed_study_goes_on(clean_home: Path):
    base = clean_home.parent
    file = base / "two.yaml"
    file.write_text(_STUDY)
    errors = base / "study.stderr"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            [_ORCH, "study", "run", str(file), "--yes"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=sink,
            start_new_session=True,
        )
    folder = None
    try:
        folder = wait_for("the study's folder", lambda: next(clean_home.glob("studies/*"), None), 30)
        second = clean_home / "runs" / f"local-2-two-{folder.name.removeprefix('two-')}-1"

        def going() -> bool:
            assert process.poll() is None, errors.read_text()
            return (second / "controller.json").exists()

        try:
            wait_for("the second run's controller", going, 200)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{errors.read_text()}") from error
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        unfinished = json.loads(orch("compare", folder.name, "-o", "json").stdout)
        assert [row["run_id"] for row in unfinished["rows"]] == [second.name.replace("-two-", "-one-")]
        assert "has not ended" in unfinished["missing"][0]["why"]
        done = orch("study", "run", "two", "--resume", "-o", "json", timeout_s=200)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert [(r["run"], r["status"], r["attempts"]) for r in told["runs"]] == [
            ("local-2-one", "done", 1),
            ("local-2-two", "done", 1),
        ]
        rows = told["comparison"]["rows"]
        assert all(row["emulated"]["sps"] > 0 for row in rows)
        assert [row["experiment"] for row in rows] == ["local-2 one", "local-2 two"]
        assert Path(told["report"]).read_text().count("<svg") >= 3
        assert [type(e) for e in read_journal(folder)] == [Started, Ended, Started, Ended]
        assert len(list((clean_home / "runs").iterdir())) == 2
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for _ in range(3):  # a cloud that was starting when the study died is seen once it is up
            if our_processes(base):
                orch("reap", "--all", timeout_s=90)
