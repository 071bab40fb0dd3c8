"""Nothing of this machine or its user shows in a golden file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def any_machine(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two cores, a user without files, no variables that orch or a cloud's tools read."""
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
    return tmp_path
