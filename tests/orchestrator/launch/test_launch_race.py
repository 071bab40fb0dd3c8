"""Two concurrent launches of one run id: one starts the run, the other attaches to it or exits with 6."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrics.store.database import RunStore

# The real command, folder, database and locks; only what comes after the lock, the cloud and Ray, is a file.
RACER = """
import os, sys, time
from pathlib import Path

from orchestrator.cli.app import run
from orchestrator.controller import client

folder = Path(sys.argv[1])


def bring_up(run_id, home):
    folder = home / "runs" / run_id
    with (folder / "started").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.3)
    (folder / "alive").touch()
    return client.RunConnection(run_id, folder)


client._bring_up = bring_up
client.controller_alive = lambda folder: (folder / "alive").exists()
(folder / f"ready-{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
sys.exit(run(["launch", "local-2", "--run-id", "race", "--yes", "--detach"]))
"""


@pytest.mark.processes
def test_exactly_one_concurrent_launch_gets_the_run(own_home: Path, tmp_path: Path):
    racers = 4
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path)],
            env={**os.environ, "ORCH_HOME": str(own_home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(racers)
    ]
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("ready-*"))) < racers and time.monotonic() < deadline:
            time.sleep(0.02)
        (tmp_path / "go").touch()
        said = [child.communicate(timeout=60) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    codes = [child.returncode for child in children]
    assert set(codes) <= {0, 6}, said
    assert 0 in codes, said
    for code, (out, err) in zip(codes, said, strict=True):
        assert out == ("race\n" if code == 0 else ""), err
        assert code == 0 or "another `orch` is starting this run" in err
    folder = own_home / "runs" / "race"
    assert len((folder / "started").read_text().splitlines()) == 1
    with RunStore.open_reader(folder / "run.db") as store:
        assert len(store.records("events")) == 1
        assert store.meta("status") == "running"
