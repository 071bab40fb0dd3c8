"""Nothing of this machine or its user shows in a golden file."""

from __future__ import annotations

import gzip
import os
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def any_machine(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cores, a user without files, no variables that orch or a cloud's tools read; a day of November 2026."""
    for name in os.environ:
        if name.startswith(("ORCH_", "AWS_", "GOOGLE_", "AZURE_", "SKY")) and name not in {
            "ORCH_HOME",
            "ORCH_SHARED",
            "ORCH_SWIFT_VENV",
            "ORCH_UPDATE_GOLDENS",
        }:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("orchestrator.cli.starting.today", lambda: date(2026, 11, 25))
    return tmp_path


@pytest.fixture
def runs(own_home: Path, any_machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of three finished runs, in ORCH_HOME.

    `runs/` has their run.db as SQL, dumped once in November 2026 and not rewritten since: what it was then must be
    read by every later version. geo-b2 is a real run on the emulated cloud. geo-c8 is what
    tests/analysis/made_up_run.py writes. preempted is what the scripted run of tests/orchestrator/crash_rig.py
    leaves (two VMs taken back, a pause, a monitor that died, traffic to an unknown address), with joins and
    the meta values that its reports need.
    """
    monkeypatch.delenv("ORCH_SHARED", raising=False)  # with it, `orch compare` reads the study's logs
    dumps = sorted((Path(__file__).parent / "runs").glob("*.sql.gz"))
    names = [dump.name.removesuffix(".sql.gz") for dump in dumps]
    for name, dump in zip(names, dumps, strict=True):
        folder = own_home / "runs" / name
        folder.mkdir(parents=True)
        (folder / "experiment.yaml").touch()
        with closing(sqlite3.connect(folder / "run.db")) as database:
            database.executescript(gzip.decompress(dump.read_bytes()).decode())
    work = any_machine / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return names
