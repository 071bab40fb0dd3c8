"""End-to-end tests: a home and a TMPDIR with short paths (UNIX sockets), nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from leftovers import look, wait_until_clean


@pytest.fixture
def clean_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for one test; at its end no process, mount or temporary file may be left."""
    base = Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
    (base / "t").mkdir()
    monkeypatch.setenv("ORCH_HOME", str(base / "home"))
    monkeypatch.setenv("TMPDIR", str(base / "t"))
    before = look(base)
    yield base / "home"
    left = wait_until_clean(base, before)
    shutil.rmtree(base)
    assert left == []
